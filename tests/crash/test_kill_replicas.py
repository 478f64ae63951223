"""Three real brokers, one of them SYNC_MASTER: killed and halted under load, again and again.

Producers talk to whoever leads over plain sockets, many requests in flight on each. After each
round, once all replicas are in sync again, everything is pulled: what was acknowledged is there
once, where the answer said and unchanged. At the end the logs are equal byte by byte, and each
replica's queues hold the same.

A failure names its seed; `MAILBOAT_TEST_REPLICA_SEED` takes another one,
`MAILBOAT_TEST_REPLICA_ROUNDS` more rounds.
"""

import asyncio
import os
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import pytest
from kill_process import PlainConnection, read_queue, send_request
from promises import promised
from replica_processes import ReplicaProcesses, read_folder, until

from mailboat.model.message_id import decode_offset_message_id
from mailboat.protocol.codes import ResponseCode
from mailboat.testing.history import Crash, Found, History, QueueKey, QueueView, Sent

# Real processes are killed, many times.
pytestmark = pytest.mark.slow

_ROUNDS: Final = int(os.environ.get("MAILBOAT_TEST_REPLICA_ROUNDS", "7"))
_SEED: Final = int(os.environ.get("MAILBOAT_TEST_REPLICA_SEED", "1"))
_TOPIC: Final = "killed"
_PRODUCERS: Final = 4
_DEPTH: Final = 8
_ANSWER_S: Final = 12.0
_HEAL_S: Final = 40.0
_FAULTS: Final = (
    "master killed",
    "slave killed",
    "one halted",
    "master halted and replaced",
    "master and slave killed",
    "all killed",
    "slaves killed before the master, and master without it",
)
# The outcome is unknown: the message may be stored.
_UNKNOWN: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class Load:
    """Producers, a queue each, that send to one replica until it is gone or they are to stop."""

    def __init__(self, history: History, random: Random) -> None:
        """Note in `history` what is sent and answered."""
        self._history = history
        self._random = random
        self._numbers = count()
        self.is_wanted = False
        self.acknowledged = 0

    async def run(self, address: tuple[str, int]) -> None:
        """Send until `is_wanted` is no more, or there is no answer any more."""
        self.is_wanted = True
        await asyncio.gather(*(self._produce(address, queue_id) for queue_id in range(_PRODUCERS)))

    async def _produce(self, address: tuple[str, int], queue_id: int) -> None:
        try:
            connection = await PlainConnection.open(address)
        except OSError:
            return
        in_flight: dict[int, Sent] = {}
        try:
            while self.is_wanted or in_flight:
                while self.is_wanted and len(in_flight) < _DEPTH:
                    sent = self._next(queue_id)
                    request = send_request(_TOPIC, queue_id, sent.body, queues=_PRODUCERS)
                    in_flight[connection.send(request)] = sent
                answer = await asyncio.wait_for(connection.receive(), _ANSWER_S)
                sent = in_flight.pop(answer.opaque)
                if answer.code == ResponseCode.SUCCESS:
                    place = decode_offset_message_id(answer.ext_fields["msgId"]).physical_offset
                    queue_offset = int(answer.ext_fields["queueOffset"])
                    with promised("what is acknowledged has its own place"):
                        self._history.acknowledge(sent, queue_offset, place)
                    self.acknowledged += 1
                elif answer.code not in _UNKNOWN:
                    self._history.refuse(sent)
                    await asyncio.sleep(0.02)  # As clients do.
        except (OSError, TimeoutError):
            return
        finally:
            await connection.close()

    def _next(self, queue_id: int) -> Sent:
        body = b"%d %d " % (queue_id, next(self._numbers))
        body += self._random.randbytes(self._random.randrange(600))
        return self._history.send(_TOPIC, queue_id, body)


class Rounds:
    """What happens to the group, one round after the other."""

    def __init__(self, group: ReplicaProcesses, random: Random) -> None:
        """Act on processes that run."""
        self._group = group
        self._random = random
        self.history = History()
        self.load = Load(self.history, random)
        self.told: list[str] = []

    async def heal(self) -> int:
        """Start who is missing and wait until all are in sync; return who leads.

        A person promotes whom the others let, once nobody leads for a while.
        """
        await asyncio.to_thread(self._group.start_missing)
        if not await until(lambda: self._leader() is not None, 10):
            self.told.append("promoted by hand")
            print(self.told[-1])
            assert await until(self._promote_any, _HEAL_S), self._story()
        assert await until(self._is_in_sync, _HEAL_S), self._story()
        leader = await asyncio.to_thread(self._leader)
        assert leader is not None
        return leader

    async def live(self, fault: str, leader: int) -> None:
        """Load the group, and let something happen to it meanwhile."""
        self.told.append(f"{fault}, replica {leader} leads")
        print(self.told[-1])
        load = asyncio.create_task(self.load.run(self._group.address(leader)))
        # What is being tested is a fault at any moment of the work.
        await asyncio.sleep(self._random.uniform(0.1, 0.8))
        slaves = [ordinal for ordinal in self._group.ordinals if ordinal != leader]
        slave = self._random.choice(slaves)
        match fault:
            case "master killed":
                await asyncio.to_thread(self._group.kill, leader)
                assert await until(self._promote_any, _HEAL_S), self._story()
            case "slave killed":
                await asyncio.to_thread(self._group.kill, slave)
                await asyncio.sleep(self._random.uniform(0.1, 4))
            case "one halted":
                await self._halt(self._random.choice([leader, *slaves]))
            case "master halted and replaced":
                self._group.halt(leader)
                promoted = asyncio.create_task(until(lambda: self._promote_one_of(slaves), _HEAL_S))
                assert await promoted, self._story()
                self._group.go_on(leader)
            case "master and slave killed":
                await asyncio.to_thread(self._group.kill, leader, slave)
            case "all killed":
                await asyncio.to_thread(self._group.kill, *self._group.ordinals)
            case "slaves killed before the master, and master without it":
                await asyncio.to_thread(self._group.kill, *slaves)
                await asyncio.sleep(self._random.uniform(0.1, 0.9))
                await asyncio.to_thread(self._group.kill, leader)
                for ordinal in slaves:
                    await asyncio.to_thread(self._group.start, ordinal)
                assert await until(self._promote_any, _HEAL_S), self._story()
        self.load.is_wanted = False
        await load

    async def send_some(self, leader: int) -> None:
        """Have each queue written to: so whoever has never led learns of the topic."""
        load = asyncio.create_task(self.load.run(self._group.address(leader)))
        before = self.load.acknowledged
        assert await until(lambda: self.load.acknowledged > before + 100, _HEAL_S), self._story()
        self.load.is_wanted = False
        await load

    async def _halt(self, ordinal: int) -> None:
        self._group.halt(ordinal)
        await asyncio.sleep(self._random.uniform(0.1, 5))
        self._group.go_on(ordinal)
        await asyncio.sleep(0.3)

    def _promote_any(self) -> bool:
        return self._promote_one_of(list(self._group.ordinals))

    def _promote_one_of(self, ordinals: list[int]) -> bool:
        return any(
            self._group.promote(ordinal) for ordinal in ordinals if self._group.is_running(ordinal)
        )

    def _leader(self) -> int | None:
        for ordinal in self._group.ordinals:
            found = self._group.status(ordinal)
            if found is not None and found["role"] == "master":
                return ordinal
        return None

    def _is_in_sync(self) -> bool:
        leader = self._leader()
        found = None if leader is None else self._group.status(leader)
        if found is None or found["in_sync"] != list(self._group.ordinals) or found["refusal"]:
            return False
        ends = [found["end"], found["confirmed_offset"]]
        for ordinal in self._group.ordinals:
            other = self._group.status(ordinal)
            if other is None or [other["end"], other["confirmed_offset"]] != ends:
                return False
        return True

    def _story(self) -> str:
        lines = [f"seed {_SEED}", *self.told]
        for ordinal in self._group.ordinals:
            if self._group.is_running(ordinal):
                lines.append(f"{ordinal}: {self._group.status(ordinal)}")
        return "\n".join([*lines, self._group.logs()[-20_000:]])


async def _read_all(address: tuple[str, int]) -> dict[QueueKey, QueueView]:
    connection = await PlainConnection.open(address)
    views: dict[QueueKey, QueueView] = {}
    try:
        for queue_id in range(_PRODUCERS):
            content = await read_queue(connection, _TOPIC, queue_id)
            found = [
                Found(message.queue_offset, message.physical_offset, message.body)
                for message in content.messages
            ]
            views[_TOPIC, queue_id] = QueueView(content.min_offset, content.max_offset, found)
    finally:
        await connection.close()
    return views


def _log_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir()))


@pytest.mark.crash
@pytest.mark.timeout(120 + 40 * _ROUNDS)
async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """Whoever leads has what was acknowledged, and all logs are equal in the end."""
    random = Random(_SEED)
    group = ReplicaProcesses(tmp_path, 3)
    faults = [_FAULTS[number % len(_FAULTS)] for number in range(_ROUNDS)]
    random.shuffle(faults)
    rounds = Rounds(group, random)
    try:
        await asyncio.to_thread(group.start_all)
        leader = await rounds.heal()
        for fault in faults:
            await rounds.live(fault, leader)
            leader = await rounds.heal()
            await rounds.send_some(leader)
            views = await _read_all(group.address(leader))
            with promised(f"whoever leads has what was acknowledged, seed {_SEED}"):
                rounds.history.adopt(views, Crash.NONE)
        assert await asyncio.to_thread(group.end_all) == [0, 0, 0]
        logs = [_log_bytes(group.folder(ordinal)) for ordinal in group.ordinals]
        with promised(f"all logs are equal, seed {_SEED}"):
            assert logs[0] == logs[1] == logs[2]
        for ordinal in group.ordinals:
            views = await asyncio.to_thread(read_folder, group.folder(ordinal), {_TOPIC})
            with promised(f"each replica has what was acknowledged, seed {_SEED}"):
                rounds.history.check(views, Crash.NONE)
        assert "Traceback" not in group.logs()
        assert rounds.load.acknowledged > 50 * _ROUNDS
    finally:
        await asyncio.to_thread(group.kill_all)
