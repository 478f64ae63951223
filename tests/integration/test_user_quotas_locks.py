"""Queues that members lock count for their users, who are kept within their quotas."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from guarded import Users, client_of, guarded_broker, known_as

from mailboat.broker.controller import BrokerController
from mailboat.security.quotas import Quotas

BOUNDED, FREE = known_as("bounded"), known_as("free")


@pytest.fixture
def users() -> Users:
    """Return two users that may use everything; one of them is bounded."""
    users = Users()
    for name in ("bounded", "free"):
        users.add(name, ("*", "All"))
    return users


@pytest.fixture
async def broker(tmp_path: Path, users: Users) -> AsyncIterator[BrokerController]:
    """Run a broker with a topic and a group."""
    async with guarded_broker(tmp_path, users) as controller:
        async with client_of(controller, FREE) as client:
            await client.make_topic("T", 4)
            await client.heartbeat("T", group="G")
        yield controller


async def test_locks_are_bounded_queue_by_queue(broker: BrokerController, users: Users) -> None:
    """A member gets as many as are left and keeps them; what is given back may be locked again."""
    users.change("bounded", quotas=Quotas(queue_locks=3))
    async with client_of(broker, BOUNDED) as client, client_of(broker, FREE) as other:
        assert await client.lock("G", "T", 0, 1) == {0, 1}
        assert len(await client.lock("G", "T", 0, 1, 2, 3)) == 3
        held = await client.lock("G", "T", 0, 1, 2, 3)
        assert len(held) == 3
        assert {0, 1} <= held
        assert broker.queue_locks.held_by("bounded") == 3
        [left] = {0, 1, 2, 3} - held
        assert await other.lock("G", "T", left) == {left}
        await client.unlock("G", "T", 0, 1)
        assert broker.queue_locks.held_by("bounded") == 1
        await other.unlock("G", "T", left)
        assert await client.lock("G", "T", left) == {left}
    assert broker.quotas is not None
    [use] = [one for one in broker.quotas.uses() if one.name == "bounded"]
    assert use.refused == {"queueLocks": 2}


async def test_locks_of_others_are_within_the_quota_too(
    broker: BrokerController, users: Users
) -> None:
    """Whoever calls itself as the member of another user locks no more than it may."""
    users.change("bounded", quotas=Quotas(queue_locks=2))
    async with client_of(broker, BOUNDED) as client, client_of(broker, FREE) as other:
        other.client_id = client.client_id
        assert await other.lock("G", "T", 0, 1, 2, 3) == {0, 1, 2, 3}
        assert len(await client.lock("G", "T", 0, 1, 2, 3)) == 2
        assert len(await client.lock("G", "T", 0, 1, 2, 3)) == 2
        assert broker.queue_locks.held_by("bounded") == 2
        assert broker.queue_locks.held_by("free") == 2
