"""Standard error that never fails.

What is said there is for people. Whether anybody listens (a closed pipe, a full disk behind `2>`,
`2>&-`) must change neither what a command does nor its exit code, which scripts go by.
"""

import io
import os
import sys
from typing import Any


def keep_standard_error() -> None:
    """Let writes to standard error succeed from now on; one that a program put there stays."""
    stream = sys.stderr
    if stream is None:
        # The lowest free descriptor is 2, so no file or connection takes it.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
        return
    is_pythons = stream is sys.__stderr__
    if is_pythons:
        raw = _NeverFails(stream.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=True,
        )


class _NeverFails(io.FileIO):
    """A descriptor; what cannot be written to it is dropped."""

    def write(self, data: Any, /) -> int:
        """Write some of the bytes, or none and say that all were."""
        try:
            written = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written
