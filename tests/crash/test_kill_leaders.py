"""Three real brokers that a Lease leads: whoever leads is killed, told to end, or halted.

A producer sends one message after the other all the while, and tries again until it is
acknowledged. Nobody promotes anybody. In the end what was acknowledged is in the log of every
replica.
"""

import asyncio
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import msgspec
import pytest
from kube_stub import KubeStub
from promises import promised
from replica_processes import SMALL_FILES, ServerProcess

from mailboat.client import Message, Producer
from mailboat.errors import MailboatError
from mailboat.replication.lease import Lease, Member
from mailboat.replication.lease_manifest import decode_lease, encode_lease
from mailboat.testing.kept_ports import KeptPorts

# Real processes are killed, many times.
pytestmark = pytest.mark.slow

_GROUP: Final = "mq-g1"
_KEY: Final = f"leases/{_GROUP}"
_LEASE_S: Final = 6
_REPLICAS: Final = 3
_ROUNDS: Final = int(os.environ.get("MAILBOAT_TEST_LEADER_ROUNDS", "2"))
_HEAL_S: Final = 40.0
_SEND_S: Final = 1.0
_SIGNALS: Final = {
    "killed": signal.SIGKILL,
    "told to end": signal.SIGTERM,
    "halted": signal.SIGSTOP,
}
# A fault that is not seen for what it is takes the whole lease.
_WITHIN_S: Final = {"killed": _LEASE_S - 1, "told to end": _LEASE_S - 1, "halted": _LEASE_S + 6}


class _Volume(msgspec.Struct):
    store_id: str


class LeaseProcesses:
    """The replicas of one group, by ordinal, and their name server."""

    def __init__(self, root: Path, kube: KubeStub) -> None:
        """Keep everything below `root`."""
        self._root = root
        self._kube = kube
        self._kept_ports = KeptPorts()
        self._ports = [[self._kept_ports.take() for _ in range(2)] for _ in range(_REPLICAS)]
        self._processes: dict[int, ServerProcess] = {}
        self._namesrv: ServerProcess | None = None
        self.namesrv_address = ""

    async def __aenter__(self) -> Self:
        """Start everything, and let replica 0 lead at first."""
        words = ["--namesrv-port", "0", "--no-http", "-o"]
        words.append(f"kvConfigPath={self._root / 'kvConfig.json'}")
        self._namesrv = ServerProcess(self._root / "namesrv.log", "namesrv", *words)
        ready = await asyncio.to_thread(self._namesrv.wait_ready)
        self.namesrv_address = ready["namesrv"]
        for ordinal in range(_REPLICAS):
            await self.start(ordinal)
        found = (self.folder(0) / "mailboat" / "replica.json").read_bytes()
        member = Member(0, msgspec.json.decode(found, type=_Volume).store_id)
        first = Lease(0, None, 0, frozenset({member}), 2, lease_s=_LEASE_S)
        now = datetime.now(UTC)
        self._kube.put(_KEY, encode_lease(first, _GROUP, {}, now=now))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        for process in [*self._processes.values(), self._namesrv]:
            if process is not None:
                await asyncio.to_thread(process.end, signal.SIGTERM)
        self._kept_ports.close()

    @property
    def lease(self) -> Lease:
        """The lease as it is in the API server."""
        return decode_lease(self._kube.objects[_KEY])

    def folder(self, ordinal: int) -> Path:
        """Return where a replica has its store."""
        return self._root / f"replica-{ordinal}"

    async def start(self, ordinal: int) -> None:
        """Start a replica where it was before, in the same pod."""
        name = f"{_GROUP}-{ordinal}"
        options = {
            **SMALL_FILES,
            "brokerName": "broker-a",
            "brokerId": ordinal,
            "brokerRole": "SYNC_MASTER",
            "totalReplicas": _REPLICAS,
            "haListenPort": self._ports[ordinal][1],
            "haMasterAddress": ";".join(f"127.0.0.1:{port}" for _, port in self._ports),
            "fastListenEnable": "false",
            "leaseName": _GROUP,
            "leaseSeconds": _LEASE_S,
            "podName": name,
            "podUid": f"uid-{ordinal}",
            "kubeApiFolder": self._kube.pod(name),
        }
        words = ["-n", self.namesrv_address, "--data-dir", str(self.folder(ordinal)), "--no-http"]
        words += ["--broker-port", str(self._ports[ordinal][0])]
        words += [f"-o{key}={value}" for key, value in options.items()]
        process = ServerProcess(self._root / f"replica-{ordinal}.log", "broker", *words)
        self._processes[ordinal] = process
        await asyncio.to_thread(process.wait_ready)

    def signal(self, ordinal: int, number: int) -> None:
        """Send a signal to a replica."""
        self._processes[ordinal].signal(number)

    async def go_on(self, ordinal: int, number: int) -> None:
        """Have a replica that got a signal run again."""
        if number == signal.SIGSTOP:
            self.signal(ordinal, signal.SIGCONT)
        else:
            await asyncio.to_thread(self._processes.pop(ordinal).end, number)
            await self.start(ordinal)

    async def in_sync(self) -> int:
        """Wait until all are in the in-sync set; return who leads."""
        async with asyncio.timeout(_HEAL_S):
            while True:
                holder = self.lease.holder
                if holder is not None and len(self.lease.in_sync) == _REPLICAS:
                    return holder.ordinal
                await asyncio.sleep(0.05)

    async def led_after(self, epoch: int) -> None:
        """Wait until another epoch has begun."""
        async with asyncio.timeout(_HEAL_S):
            while self.lease.epoch == epoch:  # noqa: ASYNC110 - the object is the event
                await asyncio.sleep(0.01)


class Load:
    """One producer that sends one message after the other."""

    def __init__(self) -> None:
        """Send nothing yet."""
        self.acknowledged: list[bytes] = []
        self._acknowledged = asyncio.Event()
        self._began_s = 0.0
        self._number = 0

    async def run(self, namesrv: str) -> None:
        """Send until it is cancelled; after an error as a client that has just started.

        Another one may stay with a connection to a halted broker until it looks at the route again,
        which is not the group's time.
        """
        while True:
            try:
                async with Producer("group", namesrv=namesrv) as producer:
                    while True:
                        await self._send(producer)
            except MailboatError:
                await asyncio.sleep(0.02)

    async def _send(self, producer: Producer) -> None:
        self._number += 1
        body = b"<%06d>" % self._number
        began_s = asyncio.get_running_loop().time()
        await producer.send(Message("killed", body), timeout_s=_SEND_S)
        self.acknowledged.append(body)
        self._began_s = began_s
        self._acknowledged.set()
        await asyncio.sleep(0.005)

    async def next_after(self, fault_s: float) -> float:
        """Return how long after a time the first send was acknowledged that began after it."""
        async with asyncio.timeout(_HEAL_S):
            while True:
                self._acknowledged.clear()
                await self._acknowledged.wait()
                if self._began_s > fault_s:
                    return asyncio.get_running_loop().time() - fault_s


@pytest.mark.crash
async def test_nothing_acknowledged_is_lost_with_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault of whoever leads is healed by the others, in its time."""
    load = Load()
    async with KubeStub(tmp_path, monkeypatch) as kube:
        async with LeaseProcesses(tmp_path, kube) as group:
            await group.in_sync()
            sending = asyncio.create_task(load.run(group.namesrv_address))
            for name, number in [*_SIGNALS.items()] * _ROUNDS:
                leader = await group.in_sync()
                await load.next_after(asyncio.get_running_loop().time())
                epoch = group.lease.epoch
                fault_s = asyncio.get_running_loop().time()
                group.signal(leader, number)
                await group.led_after(epoch)
                led_s = asyncio.get_running_loop().time()
                took_s = led_s - fault_s + await load.next_after(led_s)
                print(f"leader {name}: next send acknowledged after {took_s:.2f} s")
                assert took_s < _WITHIN_S[name]
                await group.go_on(leader, number)
            await group.in_sync()
            await load.next_after(asyncio.get_running_loop().time())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await group.in_sync()
    assert len(load.acknowledged) > 100
    for ordinal in range(_REPLICAS):
        files = sorted((tmp_path / f"replica-{ordinal}" / "commitlog").iterdir())
        log = b"".join(path.read_bytes() for path in files if path.name.isdigit())
        lacking = [body for body in load.acknowledged if body not in log]
        with promised("each replica has what was acknowledged"):
            assert lacking == [], f"replica {ordinal}"
