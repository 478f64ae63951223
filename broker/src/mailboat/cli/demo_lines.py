"""What the demo sends: lines of real files, each with a key and a tag from its path.

Bytes are sent as they are, whatever their encoding. The line's end is left out; a line longer than
a message may be is sent in parts; a line without content is left out, as a RocketMQ message needs a
body.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

from mailboat.errors import MailboatError

# Below RocketMQ's limit of 4 MiB, with room for what travels beside the body.
PART_BYTES: Final = 4_000_000
STDIN: Final = "-"
_SOURCE_SUFFIXES: Final = (".py", ".pyi")


@dataclass(frozen=True, slots=True)
class Line:
    """One message to be: a key such as `json/decoder.py:12`, a tag such as `json`, and the body."""

    key: str
    tag: str
    body: bytes


@dataclass(slots=True)
class LineCounts:
    """What happened to lines that did not become one message each."""

    empty_lines: int = 0
    split_lines: int = 0


class LineSource:
    """The lines of the demo's input."""

    def __init__(self, given: str | None, limit: int | None) -> None:
        """Read from `given` (a file, a folder, `-`), or from this machine's Python if it is None.

        At most `limit` messages are made; Python's own sources are read again if they are too
        short.
        """
        self._given = given
        self._limit = limit
        self.counts = LineCounts()

    @property
    def description(self) -> str:
        """Where the lines come from, for people."""
        if self._given is None:
            return f"Python's own sources in {_python_roots()[0]}"
        return "standard input" if self._given == STDIN else self._given

    def lines(self) -> Iterator[Line]:
        """Yield the lines.

        Raises:
            MailboatError: the input cannot be read.
        """
        made = 0
        for line in self._all_lines():
            if made == self._limit:
                return
            yield line
            made += 1

    def _all_lines(self) -> Iterator[Line]:
        if self._given is None:
            yield from self._python_lines()
        elif self._given == STDIN:
            yield from self._file_lines(sys.stdin.buffer, name="stdin", tag="stdin")
        elif os.path.isdir(self._given):
            yield from self._tree_lines(Path(self._given), _files(Path(self._given)))
        else:
            yield from self._path_lines(Path(self._given), Path(os.path.basename(self._given)))

    def _python_lines(self) -> Iterator[Line]:
        roots = _python_roots()
        for round_number in count(1):
            prefix = "" if round_number == 1 else f"round-{round_number}/"
            is_empty = True
            for root in roots:
                for line in self._tree_lines(root, _python_files(root, roots), prefix):
                    is_empty = False
                    yield line
            if is_empty or self._limit is None:
                return

    def _tree_lines(self, root: Path, files: Iterable[Path], prefix: str = "") -> Iterator[Line]:
        for path in files:
            yield from self._path_lines(path, path.relative_to(root), prefix)

    def _path_lines(self, path: Path, shown: Path, prefix: str = "") -> Iterator[Line]:
        # The package a file belongs to: its top folder, or its own name without the suffix.
        tag = shown.parts[0] if len(shown.parts) > 1 else shown.stem
        try:
            with path.open("rb") as file:
                yield from self._file_lines(file, name=f"{prefix}{_plain(shown)}", tag=tag)
        except OSError as exc:
            raise MailboatError(f"{path} cannot be read: {exc.strerror}") from exc

    def _file_lines(self, file: BinaryIO, *, name: str, tag: str) -> Iterator[Line]:
        tag = _plain(tag)
        number, part = 1, 0
        while data := file.readline(PART_BYTES):
            is_whole = data.endswith(b"\n")
            body = data.rstrip(b"\r\n") if is_whole else data
            if not is_whole and len(data) == PART_BYTES:
                part += 1
                self.counts.split_lines += part == 1
                yield Line(f"{name}:{number}.{part}", tag, body)
                continue
            if body:
                suffix = f".{part + 1}" if part else ""
                yield Line(f"{name}:{number}{suffix}", tag, body)
            elif not part:
                self.counts.empty_lines += 1
            number, part = number + 1, 0


def _python_roots() -> list[Path]:
    """Return the standard library's folder and the one of installed packages."""
    paths = sysconfig.get_paths()
    roots = [Path(paths["stdlib"]), Path(paths["purelib"])]
    return [root for root in dict.fromkeys(roots) if root.is_dir()]


def _python_files(root: Path, roots: Iterable[Path]) -> Iterator[Path]:
    others = {other for other in roots if other != root}
    skipped = {"site-packages", "dist-packages", "__pycache__"}
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(
            name for name in folders if name not in skipped and here / name not in others
        )
        yield from (here / name for name in sorted(names) if name.endswith(_SOURCE_SUFFIXES))


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        paths = (Path(folder) / name for name in sorted(names))
        yield from (path for path in paths if path.is_file())


def _plain(text: str | Path) -> str:
    """Return a path as printable ASCII without spaces: keys are separated by spaces."""
    return quote(os.fsencode(text), safe="/.-_+@,=~")
