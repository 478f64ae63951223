"""Machines of a test: network namespaces on one switch, between which packets can be dropped.

The namespaces have no names: each lives as long as a thread of this process is in it, or a process
that was started there, and those die with the thread. So nothing is left behind, however the test
ends, and the network and the rules of the host are never touched. A machine has mounts of its own
as well, which only its processes and `do` see.
"""

import ctypes
import os
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_COMMANDS: Final = {"ip": "iproute2", "nft": "nftables", "setpriv": "util-linux"}
"""What is needed, and the package that has it."""

_CLONE_NEWNS, _CLONE_FS, _CLONE_NEWNET = 0x00020000, 0x00000200, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_WORKERS: Final = 6


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def why_no_machines() -> str:
    """Say why there can be no machines here, empty if there can."""
    for command, package in _COMMANDS.items():
        if shutil.which(command) is None:
            return f"there is no {command} (package {package})"
    try:
        network = Network(2)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        return f"no network namespaces can be made, which takes root: {error} {said}".strip()
    network.close()
    return ""


class Machine:
    """One network namespace, with mounts of its own."""

    def __init__(self) -> None:
        """Make it, without any link."""
        # The kernel gives a process the namespaces of the thread that starts it.
        self._founder = ThreadPoolExecutor(1, "founder")
        self._network_fd = -1
        try:
            self.thread_id = self.do(self._found)
        except BaseException:
            self._founder.shutdown()
            raise
        self._workers = ThreadPoolExecutor(_WORKERS, "machine", initializer=self._enter)

    def _found(self) -> int:
        _check(_LIBC.unshare(_CLONE_NEWNET | _CLONE_NEWNS | _CLONE_FS))
        _check(_LIBC.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
        thread_id = threading.get_native_id()
        self._network_fd = os.open(f"/proc/self/task/{thread_id}/ns/net", os.O_RDONLY)
        return thread_id

    def _enter(self) -> None:
        _check(_LIBC.setns(self._network_fd, _CLONE_NEWNET))

    @property
    def workers(self) -> ThreadPoolExecutor:
        """Threads in the namespace: sockets that are made there stay there."""
        return self._workers

    def do(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Call something where processes are started and mounts are seen; blocks."""
        return self._founder.submit(call, *args, **kwargs).result()

    def call(
        self,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Call something that talks to the network; blocks."""
        return self._workers.submit(call, *args, **kwargs).result()

    def run(self, *command: str, text: str = "") -> None:
        """Run a command to its end.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        self.do(subprocess.run, command, input=text, text=True, check=True, capture_output=True)

    def close(self) -> None:
        """End it, and whatever still runs in it."""
        self._workers.shutdown()
        self._founder.shutdown()
        os.close(self._network_fd)


class Cut(NamedTuple):
    """Packets that do not arrive: from one machine at another one, all of them or some."""

    source: int
    destination: int
    percent: int = 100


class Network:
    """Machines by number, each of which reaches the others but for the cuts."""

    def __init__(self, machines: int) -> None:
        """Make so many machines."""
        self.machines: list[Machine] = []
        self._cuts: frozenset[Cut] = frozenset()
        self._switch = Machine()
        try:
            self._switch.run("ip", "-batch", "-", text="link add br0 type bridge\nlink set br0 up")
            for number in range(machines):
                self._plug(number, Machine())
        except BaseException:
            self.close()
            raise

    def _plug(self, number: int, machine: Machine) -> None:
        self.machines.append(machine)
        lines = [
            f"link add port{number} type veth peer name eth0 netns {machine.thread_id}",
            f"link set port{number} master br0 up",
        ]
        self._switch.run("ip", "-batch", "-", text="\n".join(lines))
        lines = [
            "link set lo up",
            f"addr add {self.address(number)}/24 dev eth0",
            "link set eth0 up",
        ]
        machine.run("ip", "-batch", "-", text="\n".join(lines))

    def address(self, number: int) -> str:
        """Return the IPv4 address of a machine."""
        return f"10.9.0.{number + 1}"

    def cut(self, cuts: Iterable[Cut]) -> None:
        """Drop these packets from now on, and no others."""
        after = frozenset(cuts)
        rules: dict[int, list[str]] = defaultdict(list)
        for cut in after:
            chance = "" if cut.percent == 100 else f"numgen random mod 100 < {cut.percent} "
            rules[cut.destination].append(f"ip saddr {self.address(cut.source)} {chance}drop")
        changed = {cut.destination for cut in after ^ self._cuts}
        self._cuts = after
        for number in changed:
            chain = "type filter hook input priority 0;\n" + "\n".join(rules[number])
            text = "table inet cuts\ndelete table inet cuts\n"
            text += f"table inet cuts {{\nchain input {{\n{chain}\n}}\n}}\n"
            self.machines[number].run("nft", "-f", "-", text=text)

    def close(self) -> None:
        """End all machines."""
        for machine in [*self.machines, self._switch]:
            machine.close()
        self.machines.clear()


def both_ways(one: Iterable[int], other: Iterable[int]) -> list[Cut]:
    """Return the cuts that keep machines apart."""
    pairs = [(a, b) for a in one for b in other]
    return [Cut(a, b) for a, b in pairs] + [Cut(b, a) for a, b in pairs]
