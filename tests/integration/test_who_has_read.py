"""What a broker on a full disk lets go of: by who has read it, over restarts and removals.

The disk says that it is full; the clock of the broker goes ahead when a test says so.
"""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, cast

import pytest

from mailboat.broker import administration
from mailboat.broker.controller import BrokerController
from mailboat.broker.membership import ClientInfo
from mailboat.broker.reading_progress import MEMBERS_RETURN_S
from mailboat.config import load_settings
from mailboat.disk import VolumeUsage
from mailboat.disk.real import RealDisk
from mailboat.errors import BrokerError
from mailboat.model.subscription import SubscriptionData
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.heartbeat import ConsumerData
from mailboat.remoting.connection import Connection
from mailboat.remoting.turns import in_turns
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.history import Sent
from mailboat.testing.store_simulator import make_message
from mailboat.web.retention import retention_steps

TOPIC: Final = "T"
OTHER: Final = "other"
MESSAGES: Final = 60
TIB: Final = 1 << 40
OPTIONS: Final = {
    "listenPort": "0",
    "httpPort": "-1",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "namesrvAddr": "127.0.0.1:1",
    "mappedFileSizeCommitLog": "65536",
    "messageIndexEnable": "false",
}


class FullDisk(DiskWrapper):
    """A disk above "force clean" and below "reject writes", with a clock that can go ahead."""

    def __init__(self) -> None:
        """Use the real one."""
        super().__init__(RealDisk())
        self.ahead_s = 0.0

    def usage(self, path: str) -> VolumeUsage:
        """Return a volume so large that no file of a test changes its percentage."""
        usage = super().usage(path)
        return usage._replace(
            capacity_bytes=100 * TIB, used_bytes=88 * TIB, available_bytes=12 * TIB
        )

    def monotonic(self) -> float:
        """Return the time of a clock that has gone ahead."""
        return super().monotonic() + self.ahead_s


@contextlib.asynccontextmanager
async def running(root: Path, disk: FullDisk) -> AsyncIterator[BrokerController]:
    """Run a broker on a directory; no name server is there."""
    settings = load_settings("broker", overrides={**OPTIONS, "storePathRootDir": str(root)})
    broker = BrokerController(settings, disk=disk)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.shutdown()


def send(broker: BrokerController, topic: str, count: int) -> None:
    """Store messages in queue 0 of a topic."""
    for number in range(count):
        sent = Sent(number, (topic, 0), bytes(4_000))
        broker.store.put_messages([make_message(sent, f"{topic}{number}")])


def join(broker: BrokerController, group: str, topic: str) -> ClientInfo:
    """Let a member of a group come that subscribes to a topic and commits nothing."""

    class Peer:
        peer = peer_address = "a client"

        def send_oneway(self, _: object) -> None: ...

    client = ClientInfo(cast(Connection, Peer()), f"client of {group}", "JAVA", 1)
    subscription = ConsumerData(group, subscription_data_set=[SubscriptionData(topic)])
    broker.consumers.register(client, subscription)
    return client


async def until(check: Callable[[], bool], within_s: float = 10) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within_s):
        while True:
            if check():
                return
            await asyncio.sleep(0.02)


async def look(broker: BrokerController) -> None:
    """Wait until the broker has looked how far groups are, and cleaned by what it saw."""
    rounds = broker.reading.rounds_done
    await until(lambda: broker.reading.rounds_done > rounds)
    cleaned_ms = broker.store.cleaner.last_round_ms
    await until(lambda: broker.store.cleaner.last_round_ms > cleaned_ms)


def consumed(broker: BrokerController) -> int:
    """Return how many segments went because they are read."""
    return broker.store.cleaner.files["consumed"]


@pytest.mark.parametrize("does_come_back", [True, False])
async def test_a_restart_lets_nothing_go_before_the_members_can_be_back(
    tmp_path: Path, does_come_back: bool
) -> None:
    """A group that has stored no offset yet is known by its members only, who come back late."""
    disk = FullDisk()
    async with running(tmp_path, disk) as broker:
        join(broker, "hung", TOPIC)
        send(broker, OTHER, 1)
        broker.offsets.commit("reader", OTHER, 0, 1)
        send(broker, TOPIC, MESSAGES)
        await look(broker)
        assert consumed(broker) == 0
    async with running(tmp_path, disk) as broker:
        await look(broker)
        assert (broker.reading.position(), consumed(broker)) == (0, 0)
        shown = await in_turns(retention_steps(broker))
        assert (shown.segments[0].is_read, shown.reclaimable.read_bytes) == (True, 0)
        if does_come_back:
            join(broker, "hung", TOPIC)
        disk.ahead_s += MEMBERS_RETURN_S
        if does_come_back:
            await look(broker)
            first = broker.store.physical_position(TOPIC, 0, 0)
            assert (broker.reading.position(), consumed(broker)) == (first, 0)
        else:
            await until(lambda: consumed(broker) > 0)


async def test_a_new_store_waits_for_nobody(tmp_path: Path) -> None:
    """No member can have been connected to a broker that never held a message."""
    async with running(tmp_path, FullDisk()) as broker:
        send(broker, TOPIC, MESSAGES)
        broker.offsets.commit("reader", TOPIC, 0, MESSAGES)
        await until(lambda: consumed(broker) > 0)


async def delete_group(broker: BrokerController) -> None:
    """Remove the group that is dead for good."""
    await administration.delete_group(broker, "dead", clean_offset=True)


async def delete_offsets(broker: BrokerController) -> None:
    """Remove what the group left behind in a topic that it consumes no longer."""
    assert await administration.delete_offsets(broker, "dead", OTHER)


async def delete_topic(broker: BrokerController) -> None:
    """Remove the topic that is not read."""
    await administration.delete_topic(broker, OTHER)


async def leave(broker: BrokerController) -> None:
    """Let the last member go of a group without an offset."""
    [member] = broker.consumers.groups["hung"].members
    broker.consumers.unregister("hung", member.connection, member.client_id)


@pytest.mark.parametrize(
    ("holds_back", "let_go"),
    [
        ("offset", delete_group),
        ("offset", delete_offsets),
        ("offset", delete_topic),
        ("member", delete_topic),
        ("member", leave),
    ],
)
async def test_who_lets_go_frees_a_full_disk(
    tmp_path: Path, holds_back: str, let_go: Callable[[BrokerController], Awaitable[None]]
) -> None:
    """Within seconds, although nobody sends or commits any more: sends may be refused."""
    async with running(tmp_path, FullDisk()) as broker:
        await administration.update_topic(broker, TopicConfig(OTHER, 1, 1))
        send(broker, OTHER, 1)
        send(broker, TOPIC, MESSAGES)
        broker.offsets.commit("reader", TOPIC, 0, MESSAGES)
        if holds_back == "member":
            join(broker, "hung", OTHER)
        else:
            broker.offsets.commit("dead", OTHER, 0, 0)
        await look(broker)
        await look(broker)
        assert consumed(broker) == 0
        await let_go(broker)
        await until(lambda: consumed(broker) > 0)
        assert broker.store.max_offset(TOPIC, 0) == MESSAGES


async def test_offsets_that_members_use_are_not_deleted(tmp_path: Path) -> None:
    """They would begin anew without having been told."""
    async with running(tmp_path, FullDisk()) as broker:
        join(broker, "g", TOPIC)
        broker.offsets.commit("g", TOPIC, 0, 7)
        with pytest.raises(BrokerError, match="group g subscribe to topic T") as refused:
            await administration.delete_offsets(broker, "g", TOPIC)
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
        assert broker.offsets.queues("g", TOPIC) == {0: 7}


async def test_a_topic_whose_end_cannot_be_noted_is_deleted_by_the_next_try(
    tmp_path: Path,
) -> None:
    """One sentence to the administrator, and once more does it."""

    class NoRename(FullDisk):
        def rename(self, source: str, target: str) -> None:
            if is_broken and target.endswith("deletedTopics.json"):
                raise OSError(errno.EIO, "Input/output error")
            super().rename(source, target)

    is_broken = True
    async with running(tmp_path, NoRename()) as broker:
        await administration.update_topic(broker, TopicConfig(OTHER, 1, 1))
        send(broker, OTHER, 3)
        with pytest.raises(BrokerError, match="delete it once more") as refused:
            await administration.delete_topic(broker, OTHER)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR
        note = tmp_path / "mailboat" / "deletedTopics.json"
        assert not note.exists()
        is_broken = False
        await administration.delete_topic(broker, OTHER)
        assert broker.store.max_offset(OTHER, 0) == 0
        assert OTHER in note.read_text()
