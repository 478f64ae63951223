"""The delays of the long runs do delay, and only when they are asked for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from planted_delays import (
    DISPATCH_THREAD,
    HELD_S,
    LATE_S,
    hold_java_dispatch,
    late_address,
    name_server_for_java,
    planted,
)

# A process with a thread of that name which says the longest time between two of its rounds.
TICKING = f"""
import ctypes, threading, time

def tick():
    ctypes.CDLL(None).prctl(15, {DISPATCH_THREAD!r}.encode(), 0, 0, 0)
    print("ready", flush=True)
    longest_s, before_s = 0.0, time.monotonic()
    until_s = before_s + 2.5
    while before_s < until_s:
        time.sleep(0.01)
        now_s = time.monotonic()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    print(longest_s, flush=True)

thread = threading.Thread(target=tick)
thread.start()
thread.join()
"""


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set what the run asks for."""
    return lambda name: monkeypatch.setenv("MAILBOAT_TEST_PLANT", name)


def test_nothing_is_planted_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite itself runs without delays."""
    monkeypatch.delenv("MAILBOAT_TEST_PLANT", raising=False)
    assert planted() == ""
    assert name_server_for_java("127.0.0.1:9876") == "127.0.0.1:9876"


def test_an_unknown_plant_is_refused(plant: Callable[[str], None]) -> None:
    """A typing error must not look like a run that passed."""
    plant("late-everything")
    with pytest.raises(pytest.UsageError, match="late-java-dispatch"):
        planted()


def test_what_goes_to_the_name_server_comes_late() -> None:
    """Requests are late, answers are not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(connection.recv(100))

        server = threading.Thread(target=echo)
        server.start()
        host, _, port = late_address(f"127.0.0.1:{listener.getsockname()[1]}").rpartition(":")
        began_s = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"register")
            assert client.recv(100) == b"register"
        assert time.monotonic() - began_s >= LATE_S
        server.join()


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace is Linux's")
def test_a_dispatch_is_held(plant: Callable[[str], None]) -> None:
    """The thread stands still for at least the shortest time, goes on, and ends as it would."""
    plant("late-java-dispatch")
    with subprocess.Popen(
        [sys.executable, "-c", TICKING], stdout=subprocess.PIPE, text=True
    ) as ticking:
        assert ticking.stdout is not None
        assert ticking.stdout.readline() == "ready\n"
        hold_java_dispatch(ticking.pid)
        longest_s = float(ticking.stdout.readline())
        assert ticking.wait(30) == 0
    assert longest_s >= HELD_S[0]
