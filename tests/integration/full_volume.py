"""A volume on which there is no room."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Leave no room on a volume."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    try:
        yield
    finally:
        path.unlink()
