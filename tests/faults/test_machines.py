"""The machines of these tests are what the tests take them for."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Cut, Machine, Network, both_ways
from shim import Shim

_PORT = 5000
_ECHOES = 200


@pytest.fixture
def network(has_machines: None) -> Iterator[Network]:
    """Make three machines."""
    made = Network(3)
    yield made
    made.close()


def _arrived(network: Network, source: int, destination: int, count: int = 1) -> int:
    """Send datagrams, and return how many arrive."""
    receiver = network.machines[destination].call(socket.socket, type=socket.SOCK_DGRAM)
    sender = network.machines[source].call(socket.socket, type=socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind((network.address(destination), _PORT))
        receiver.settimeout(0.3)
        for number in range(count):
            sender.sendto(b"%d" % number, (network.address(destination), _PORT))
        arrived = 0
        try:
            while arrived < count:
                receiver.recv(100)
                arrived += 1
        except TimeoutError:
            pass
    return arrived


def test_cuts_are_one_way_and_end(network: Network) -> None:
    """Everybody reaches everybody but for the cuts."""
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    assert [_arrived(network, *pair) for pair in pairs] == [1] * 6
    network.cut([Cut(0, 1)])
    assert [pair for pair in pairs if not _arrived(network, *pair)] == [(0, 1)]
    network.cut(both_ways([2], [0, 1]))
    assert [pair for pair in pairs if _arrived(network, *pair)] == [(0, 1), (1, 0)]
    network.cut([])
    assert [_arrived(network, *pair) for pair in pairs] == [1] * 6


def test_some_packets_are_lost(network: Network) -> None:
    """About as many as were asked for."""
    network.cut([Cut(0, 1, percent=30)])
    assert 0.5 * _ECHOES < _arrived(network, 0, 1, _ECHOES) < 0.9 * _ECHOES
    assert _arrived(network, 1, 0, _ECHOES) == _ECHOES


def _host() -> str:
    """Return the links, rules and mounts of the host."""
    commands = [["ip", "-brief", "link"], ["nft", "list", "ruleset"], ["ip", "netns", "list"]]
    found = [subprocess.run(each, capture_output=True, text=True, check=True) for each in commands]
    return "".join(one.stdout for one in found) + Path("/proc/self/mounts").read_text()


def test_the_host_is_left_alone(has_machines: None, tmp_path: Path) -> None:
    """No link, rule or mount of it is another one, while there are machines and afterwards."""
    before = _host()
    network = Network(2)
    network.cut(both_ways([0], [1]))
    network.machines[0].run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path))
    assert _host() == before
    network.close()
    assert _host() == before


def test_what_was_started_in_a_machine_ends_with_it(has_machines: None) -> None:
    """Also where nobody ended it."""
    machine = Machine()
    process = machine.do(subprocess.Popen, ["setpriv", "--pdeathsig", "KILL", "sleep", "1000"])
    # `setpriv` has done its part once the process is what it was to be.
    while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
        time.sleep(0.01)
    machine.close()
    assert process.wait(timeout=10) == -9


_PROBE = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
def number(call, *args):
    try:
        call(*args)
    except OSError as error:
        return error.errno
    return 0
began = time.monotonic()
print(number(os.pwrite, fd, b"x", 0), number(os.fdatasync, fd), round(time.time()),
      time.monotonic() - began)
"""


def _probe(shim: Shim, path: Path) -> tuple[int, int, int, float]:
    """Return what a write and a flush end with, the time, and how long that took, in seconds."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(path)],
        env={**os.environ, **shim.environment()},
        capture_output=True,
        text=True,
        check=True,
    )
    write, flush, now, seconds = done.stdout.split()
    return int(write), int(flush), int(now), float(seconds)


def test_disks_and_clocks_have_the_faults_asked_for(shim_library: Path, tmp_path: Path) -> None:
    """Below one folder only, and no longer than they are wanted."""
    (tmp_path / "data").mkdir()
    shim = Shim(shim_library, tmp_path / "control", tmp_path / "data")
    inside, outside = tmp_path / "data" / "file", tmp_path / "file"
    assert _probe(shim, inside)[:2] == (0, 0)
    shim.set(write_errno=errno.EIO, sync_errno=errno.ENOSPC)
    assert _probe(shim, inside)[:2] == (errno.EIO, errno.ENOSPC)
    assert _probe(shim, outside)[:2] == (0, 0)
    assert shim.failures() == 2
    shim.set(wall_shift_s=-3600, sync_delay_s=0.3)
    write, flush, now, seconds = _probe(shim, inside)
    assert (write, flush) == (0, 0)
    assert abs(now + 3600 - time.time()) < 30
    assert 0.3 <= seconds < 30
    shim.set()
    assert abs(_probe(shim, inside)[2] - time.time()) < 30
