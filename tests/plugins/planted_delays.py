"""Delays on purpose, for tests that race: a passing run shows that they wait for what they need.

`MAILBOAT_TEST_PLANT` names one of them; `make soak` runs the tests that meet it with each.

- `late-java-registration`: what a Java broker says to its name server arrives 0.4 s late. Release
  4.9 registers one-way, so its topics are known to itself before anybody can find them.
- `late-java-dispatch`: a Java broker's dispatch stands still for 0.25 to 1.2 s at a time. What it
  has acknowledged is in its CommitLog then, and in no queue and no index.
- `late-registration`: our own broker's registrations take 0.4 s longer, in the tests' processes.

Run as a program with a process id it holds that process's dispatch thread (Linux, ptrace) until the
process ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mailboat.broker.registration import _NameServer

PLANTS = ("late-java-registration", "late-java-dispatch", "late-registration")
LATE_S = 0.4
HELD_S = (0.25, 1.2)
FREE_S = (0.02, 0.3)
# Linux cuts the names of threads to 15 characters: org.apache.rocketmq's ReputMessageService.
DISPATCH_THREAD = "ReputMessageSer"
CHUNK_BYTES = 65_536
_holders: list[subprocess.Popen[bytes]] = []


def planted() -> str:
    """Return the plant of this run, "" for none."""
    plant = os.environ.get("MAILBOAT_TEST_PLANT", "")
    if plant and plant not in PLANTS:
        raise pytest.UsageError(f"MAILBOAT_TEST_PLANT={plant} is none of {', '.join(PLANTS)}")
    return plant


def name_server_for_java(address: str) -> str:
    """Return where a Java broker is to register: at the name server itself, or late."""
    return late_address(address) if planted() == "late-java-registration" else address


def late_address(address: str) -> str:
    """Return the address of a proxy that passes on what it gets `LATE_S` late, for this process."""
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            for source, sink, late_s in ((near, far, LATE_S), (far, near, 0.0)):
                threading.Thread(target=_forward, args=(source, sink, late_s), daemon=True).start()

    threading.Thread(target=serve, name="late proxy", daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _forward(source: socket.socket, sink: socket.socket, late_s: float) -> None:
    try:
        while data := source.recv(CHUNK_BYTES):
            time.sleep(late_s)
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, sink):
            end.close()


def hold_java_dispatch(pid: int) -> None:
    """Let a Java broker's dispatch stand still again and again, if that is this run's plant."""
    if planted() == "late-java-dispatch":
        # They end with what they hold; those that have are forgotten.
        _holders[:] = [holder for holder in _holders if holder.poll() is None]
        _holders.append(subprocess.Popen([sys.executable, "-I", __file__, str(pid)]))


def plant_late_registration(patch: pytest.MonkeyPatch) -> None:
    """Let the registrations of brokers in this process take longer, if that is the plant."""
    if planted() != "late-registration":
        return
    from mailboat.broker.registration import NamesrvRegistration

    register_at = NamesrvRegistration._register_at

    async def late(self: NamesrvRegistration, server: _NameServer, timeout_s: float) -> None:
        await asyncio.sleep(LATE_S)
        await register_at(self, server, timeout_s)

    patch.setattr(NamesrvRegistration, "_register_at", late)


# Holding a thread of another process. One thread of this program makes all calls of ptrace.

_SEIZE, _INTERRUPT, _CONTINUE = 0x4206, 0x4207, 7
_ALL_THREADS = 0x40000000
_EVENT_STOP = 128


def _ptrace(request: int, thread_id: int, data: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(request), thread_id, None, ctypes.c_void_p(data)) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of thread {thread_id}")


def _pass_signals(thread_id: int, seconds: float) -> None:
    """Let the thread run for a while, its signals too: the JVM uses them."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        waited, status = os.waitpid(thread_id, os.WNOHANG | _ALL_THREADS)
        if waited:
            _go_on(thread_id, status)
        time.sleep(0.005)


def _go_on(thread_id: int, status: int) -> None:
    is_event = status >> 16 == _EVENT_STOP
    _ptrace(_CONTINUE, thread_id, 0 if is_event else os.WSTOPSIG(status))


def _hold(thread_id: int) -> None:
    _ptrace(_INTERRUPT, thread_id)
    while True:
        _, status = os.waitpid(thread_id, _ALL_THREADS)
        if status >> 16 == _EVENT_STOP:
            break
        _go_on(thread_id, status)
    time.sleep(random.uniform(*HELD_S))
    _ptrace(_CONTINUE, thread_id)


def _dispatch_thread(pid: int) -> int:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == DISPATCH_THREAD:
            return int(task.name)
    raise SystemExit(f"process {pid} has no thread {DISPATCH_THREAD}")


def main() -> None:
    """Hold the dispatch of the process that the argument names, until it ends."""
    thread_id = _dispatch_thread(int(sys.argv[1]))
    try:
        _ptrace(_SEIZE, thread_id)
        while True:
            _hold(thread_id)
            _pass_signals(thread_id, random.uniform(*FREE_S))
    except (ChildProcessError, ProcessLookupError):
        # The process has ended.
        return


if __name__ == "__main__":
    main()
