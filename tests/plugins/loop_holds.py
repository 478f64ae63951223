"""Fails a test in which the server held its event loop, which means: served nobody else.

The promise is 50 ms at most for whatever one request or setting asks for. What counts is work of
the loop's own thread, measured as processor time of each callback (and of each call that the loop
makes into a store, for tests that drive one without a loop): waiting for a processor or for the
interpreter's lock, garbage collections of the test process and time that the host took away are
not the server's. On a busy machine the same work takes more processor time, as caches and cores are
shared: a callback is judged by how long a sample of work takes right after it, beside the least it
ever took. That sample may be luckier than the callback was, so a test that runs beside others of
pytest-xdist is allowed twice the time; `make soak` judges one test at a time. The kernel works at a
thread's cost too, at times for a tenth of a second in the middle of a `recv`: the second look of
`tests/gate.py` tells that from what holds the loop each time.

Blocking does not show in processor time. So a sync of a file on the loop's thread fails a test
however fast the disk was, and any callback that slept for a second does, unless the machine or the
disk stood still.

The tests share the loop with the server. A callback is the server's when its outermost part is: the
outermost coroutine of a task, the protocol of a transport, else the function itself. Client
library, commands and tests may take their time.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from machine_halts import SHORTEST_S, MachineHalts

LONGEST_WORK_S: Final = 0.1 if "PYTEST_XDIST_WORKER" in os.environ else 0.05
LONGEST_SLEEP_S: Final = SHORTEST_S
"""What is shorter is not told from a halt of the disk by `machine_halts` either."""

LOOP_CALLS: Final = {
    ("mailboat.store.message_store", "MessageStore"): (
        "background",
        "get_message",
        "get_matching_message",
        "put_batch",
        "put_messages",
    ),
}
"""What the loop calls, by class; tests may call it without a loop."""

SYNCS: Final = ("fsync", "fdatasync")

# A sync below one of these functions, and why the loop may wait for it.
ALLOWED_SYNCS: Final = {
    "mailboat/store/commit_log.py:_create": "the first segment; others are made ready on a thread",
    "mailboat/store/commit_log.py:_undo_write": "a failed write is wiped before anything is stored",
    "mailboat/store/index_service.py:_create": "the first index file makes its folder",
    "mailboat/store/replica_log.py:cut": "a follower has to end where its leader's log does",
}

_LOOK_S: Final = 0.02
_FIRST_SAMPLES: Final = 5
_FRAMES_SHOWN: Final = 10
_HANDLE_RUN: Final = asyncio.Handle._run
_HTTP_SERVER: Final = ("aiohttp", "web_protocol.py")
_NOT_SERVING: Final = ("client", "cli", "testing")


@dataclass(slots=True)
class _Run:
    """One callback that runs; `seen` is where it stood when it had run too long."""

    thread: int
    began_s: float
    began_work_s: float
    collected_s: float = 0.0
    synced: list[str] = field(default_factory=list)
    seen: str = ""


@dataclass(slots=True)
class _Before:
    """What the machine had taken from a thread until `at_s`: read seldom, for it takes a while."""

    at_s: float
    stolen_s: float
    queued_s: float


class LoopHolds:
    """A plugin that watches the loops of the tests in some folders."""

    def __init__(self, halts: MachineHalts, folders: Sequence[Path], server: Path) -> None:
        """Watch tests below `folders`; the server's sources are below `server`."""
        self._halts = halts
        self._folders = folders
        self._server = server
        self._holds: list[str] = []
        self._is_watching = False
        self._runs: dict[int, _Run] = {}
        self._before: dict[int, _Before] = {}
        self._undo: list[Callable[[], None]] = []
        self._ended = threading.Event()
        self._least_sample_s = min(_sample_work_s() for _ in range(_FIRST_SAMPLES))

    def install(self) -> None:
        """Begin to measure whatever any event loop of this process runs."""

        def watched_run(handle: Any) -> None:
            if self._is_watching:
                callback = handle._callback
                self._measure(lambda: _HANDLE_RUN(handle), lambda: self._name(callback))
            else:
                _HANDLE_RUN(handle)

        self._replace(asyncio.Handle, "_run", watched_run)
        for (module, owner), names in LOOP_CALLS.items():
            for name in names:
                self._watch_call(getattr(importlib.import_module(module), owner), name)
        for name in SYNCS:
            self._watch_sync(name)
        gc.callbacks.append(self._collecting)
        self._undo.append(lambda: gc.callbacks.remove(self._collecting))
        threading.Thread(target=self._look, name="loop-holds", daemon=True).start()

    def close(self) -> None:
        """Measure no more."""
        self._ended.set()
        for undo in reversed(self._undo):
            undo()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch what fixtures do."""
        return (yield from self._watched(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch the test."""
        return (yield from self._watched(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch how things end."""
        return (yield from self._watched(item))

    def _watched(self, item: pytest.Item) -> Generator[None, object, object]:
        if not any(item.path.is_relative_to(folder) for folder in self._folders):
            return (yield)
        self._holds.clear()
        self._is_watching = True
        try:
            result = yield
        except BaseException as error:
            for hold in self._holds:
                error.add_note(hold)
            raise
        finally:
            self._is_watching = False
        if self._holds:
            pytest.fail("\n".join(self._holds), pytrace=False)
        return result

    # -- measuring ------------------------------------------------------------------------------

    def _measure(self, call: Callable[[], Any], name: Callable[[], str | None]) -> Any:
        thread = threading.get_ident()
        if thread in self._runs:
            return call()
        before = self._before.get(thread)
        began_s = time.monotonic()
        if before is None or began_s - before.at_s > _LOOK_S:
            before = self._before[thread] = _Before(began_s, _stolen_s(), _queued_s())
            began_s = time.monotonic()
        run = self._runs[thread] = _Run(thread, began_s, time.thread_time())
        try:
            return call()
        finally:
            work_s = time.thread_time() - run.began_work_s
            whole_s = time.monotonic() - began_s
            del self._runs[thread]
            if whole_s > LONGEST_WORK_S or run.synced:
                self._judge(run, before, work_s, whole_s, name())

    def _judge(
        self, run: _Run, before: _Before, work_s: float, whole_s: float, name: str | None
    ) -> None:
        if name is None:
            return
        own_s = work_s - run.collected_s - (_stolen_s() - before.stolen_s)
        if own_s > LONGEST_WORK_S:
            own_s /= self._slowness()
        slept_s = whole_s - work_s - (_queued_s() - before.queued_s)
        found = [f"{name} synced a file {what}" for what in run.synced]
        if own_s > LONGEST_WORK_S:
            found.append(f"{name} worked for {own_s * 1000:.0f} ms on the event loop{run.seen}")
        elif slept_s > LONGEST_SLEEP_S and not self._halts.since(run.began_s):
            found.append(f"{name} slept for {slept_s * 1000:.0f} ms on the event loop{run.seen}")
        self._holds += [hold for hold in found if hold not in self._holds]

    def _slowness(self) -> float:
        """Return by which factor work takes longer now than on the machine at rest.

        The first sample after a pause may have to wait for memory of the host: the second counts.
        """
        sample_s = min(_sample_work_s(), _sample_work_s())
        self._least_sample_s = min(self._least_sample_s, sample_s)
        return sample_s / self._least_sample_s

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        run = self._runs.get(threading.get_ident())
        if run is not None:
            run.collected_s += time.thread_time() if phase == "stop" else -time.thread_time()

    def _look(self) -> None:
        """See where those stand that have run for too long."""
        while not self._ended.wait(_LOOK_S):
            for run in list(self._runs.values()):
                if not run.seen and time.monotonic() - run.began_s > LONGEST_WORK_S:
                    frame = sys._current_frames().get(run.thread)
                    if frame is not None and self._runs.get(run.thread) is run:
                        run.seen = f"; after {LONGEST_WORK_S * 1000:.0f} ms it was {_place(frame)}"

    def _watch_call(self, owner: type, name: str) -> None:
        call = getattr(owner, name)

        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self._is_watching or threading.current_thread() is not threading.main_thread():
                return call(*args, **kwargs)
            return self._measure(lambda: call(*args, **kwargs), lambda: call.__qualname__)

        self._replace(owner, name, watched)

    def _watch_sync(self, name: str) -> None:
        sync = getattr(os, name)

        @functools.wraps(sync)
        def watched(file: int) -> None:
            run = self._runs.get(threading.get_ident())
            if run is not None and not _may_sync(caller := sys._getframe(1)):
                run.synced.append(_place(caller))
            sync(file)

        self._replace(os, name, watched)

    def _replace(self, owner: Any, name: str, value: object) -> None:
        self._undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    # -- whose it is ----------------------------------------------------------------------------

    def _name(self, callback: Any) -> str | None:
        """Name a callback of the server; None for anybody else's."""
        while isinstance(callback, functools.partial):
            callback = callback.func
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, asyncio.Task):
            coroutine: Any = owner.get_coro()
            code = getattr(coroutine, "cr_code", None)
            name = getattr(coroutine, "__qualname__", "a task")
        elif isinstance(owner, asyncio.Transport):
            protocol = owner.get_protocol()
            if not getattr(protocol, "is_accepted", True):
                return None
            received = getattr(type(protocol), "data_received", None)
            code = getattr(received, "__code__", None)
            name = getattr(received, "__qualname__", "a protocol")
        else:
            code = getattr(callback, "__code__", None)
            name = getattr(callback, "__qualname__", "a callback")
        return name if code is not None and self._is_server(Path(code.co_filename)) else None

    def _is_server(self, path: Path) -> bool:
        if path.parts[-2:] == _HTTP_SERVER:
            return True
        return path.is_relative_to(self._server) and (
            path.relative_to(self._server).parts[0] not in _NOT_SERVING
        )


def _may_sync(frame: FrameType | None) -> bool:
    """Tell whether a sync on the loop is one of those that are known."""
    while frame is not None:
        code = frame.f_code
        if f"{code.co_filename}:{code.co_name}".endswith(tuple(ALLOWED_SYNCS)):
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType | None) -> str:
    """Tell where a frame stands, the innermost place first, down to what the loop called."""
    places = []
    while frame is not None and len(places) < _FRAMES_SHOWN:
        code = frame.f_code
        if code in (_HANDLE_RUN.__code__, LoopHolds._measure.__code__):
            break
        places.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return "in " + " < ".join(places)


def _sample_work_s() -> float:
    """Do some work of the kind that a server does; return the processor time that it took."""
    began_s = time.thread_time()
    table = {number: str(number) for number in range(5_000)}
    data = b"".join(name.encode() for name in table.values())
    # Larger than caches, as a frame may be.
    bytearray(data * 500)
    return time.thread_time() - began_s


def _stolen_s() -> float:
    """Return how long the host of this virtual machine ran something else instead."""
    try:
        words = Path("/proc/stat").read_text().split(maxsplit=9)
        return int(words[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):  # no Linux
        return 0.0


def _queued_s() -> float:
    """Return how long this thread has waited for a processor."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
