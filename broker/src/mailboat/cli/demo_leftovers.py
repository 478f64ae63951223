"""Leaves nothing behind when the demo is interrupted.

A signal may arrive while any lock is held, and code that is broken off there may never release it.
So Ctrl-C and SIGTERM do not raise an exception here: the handler stops the children, removes the
folders and ends the process, taking no lock on the way.
"""

import glob
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

STOP_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.05
_SHOW_CURSOR: Final = b"\x1b[?25h\n"


class Leftovers:
    """The children and folders of this run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._folders: list[Path] = []
        self._groups: list[int] = []
        self._is_held = False
        self._number: int | None = None

    def watch_signals(self) -> None:
        """Clean up and end the process on Ctrl-C and SIGTERM from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupted)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put signals off while something is made and not yet noted here."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._number is not None:
                self._leave(self._number)

    def add_folder(self, folder: Path) -> None:
        """Note a folder to remove."""
        self._folders.append(folder)

    def add_group(self, group_id: int) -> None:
        """Note a process group to stop; its leader is a child of this process."""
        self._groups.append(group_id)

    def stop_group(self, group_id: int) -> None:
        """Stop a group and wait for it: SIGTERM, and SIGKILL if that takes too long."""
        stop_groups([group_id])
        self._groups.remove(group_id)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._number = number
        else:
            self._leave(number)

    def _leave(self, number: int) -> None:
        # Threads that still run would complain about what is taken away under them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        stop_groups(self._groups)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        if sys.__stdout__ is not None and os.isatty(1):
            # A progress bar hides it.
            os.write(1, _SHOW_CURSOR)
        os._exit(128 + number)


def stop_groups(group_ids: list[int]) -> None:
    """Stop process groups; those that do not end in time are killed."""
    for group_id in group_ids:
        _signal_group(group_id, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while any(_is_alive(group_id) for group_id in group_ids):
        if time.monotonic() > deadline_s:
            for group_id in group_ids:
                _signal_group(group_id, signal.SIGKILL)
        time.sleep(_POLL_S)


def _signal_group(group_id: int, number: int) -> bool:
    """Send a signal to a group, or none with 0; tell whether the group is there."""
    try:
        os.killpg(group_id, number)
    except (ProcessLookupError, PermissionError):
        # macOS answers PermissionError for a group of ended processes.
        return False
    return True


def _is_alive(group_id: int) -> bool:
    """Tell whether a process of the group runs; ended ones that nobody has waited for do not count.

    A container's first process often waits for nobody, so they may stay there for ever.
    """
    try:
        while os.waitpid(-group_id, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    if not _signal_group(group_id, 0):
        return False
    stats = glob.glob("/proc/[0-9]*/stat")
    return not stats or any(_runs_in_group(path, group_id) for path in stats)


def _runs_in_group(stat_path: str, group_id: int) -> bool:
    try:
        text = Path(stat_path).read_text("utf-8", "replace")
    except OSError:
        # It ended while we looked.
        return False
    state, _, group = text.rpartition(")")[2].split()[:3]
    return int(group) == group_id and state not in "ZX"
