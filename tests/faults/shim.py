"""A library in front of a process's C library, compiled on the spot: faults of disk and clock."""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("shim.c")
_CONTROL: Final = struct.Struct("=5q")
_FAILURES_AT: Final = 32


def why_no_shim() -> str:
    """Say why it cannot be compiled here, empty if it can."""
    return "" if shutil.which("gcc") else "there is no gcc"


def compile_shim(folder: Path) -> Path:
    """Compile the library into a folder; blocks."""
    library = folder / "shim.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


class Shim:
    """The faults of one process, and of those that take its place."""

    def __init__(self, library: Path, control_path: Path, data_folder: Path) -> None:
        """Begin without faults; only files below `data_folder` can have some."""
        self._library = library
        self._control_path = control_path
        self._data_folder = data_folder
        control_path.write_bytes(bytes(_CONTROL.size))

    def environment(self) -> dict[str, str]:
        """Return what the process must find in its environment."""
        return {
            "LD_PRELOAD": str(self._library),
            "SHIM_CONTROL": str(self._control_path),
            "SHIM_FOLDER": str(self._data_folder),
        }

    def set(
        self,
        *,
        wall_shift_s: float = 0,
        write_errno: int = 0,
        sync_errno: int = 0,
        sync_delay_s: float = 0,
    ) -> None:
        """Have these faults from now on, and no others."""
        numbers = round(wall_shift_s * 1e9), write_errno, sync_errno, round(sync_delay_s * 1e9)
        with self._control_path.open("r+b", buffering=0) as file:
            file.write(struct.pack("=4q", *numbers))

    def failures(self) -> int:
        """Return how many calls have failed."""
        data = self._control_path.read_bytes()
        return int.from_bytes(data[_FAILURES_AT:], "little")
