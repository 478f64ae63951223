import pytest

from mailboat.client.allocation import (
    Allocation,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_config,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
)
from mailboat.model.message_queue import MessageQueue

QUEUES = [MessageQueue("T", name, number) for name in ("hz@a", "sh@b") for number in range(5)]
MEMBERS = ["10.0.0.1@1", "10.0.0.2@7", "10.0.0.3@9"]

# What the strategies of rocketmq-client 4.9.7 return for QUEUES and MEMBERS.
JAVA = {
    "AVG": ("hz0 hz1 hz2 hz3", "hz4 sh0 sh1", "sh2 sh3 sh4"),
    "AVG_BY_CIRCLE": ("hz0 hz3 sh1 sh4", "hz1 hz4 sh2", "hz2 sh0 sh3"),
    "CONSISTENT_HASH": ("hz0 hz1 sh0 sh2", "hz4 sh3 sh4", "hz2 hz3 sh1"),
    "MACHINE_ROOM": ("sh0 sh3", "sh1 sh4", "sh2"),
}
STRATEGIES = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_by_circle,
    "CONSISTENT_HASH": allocate_by_consistent_hash,
    "MACHINE_ROOM": allocate_by_machine_room({"sh"}),
}


def short(queues: list[MessageQueue]) -> str:
    """Write queues as the table above does."""
    return " ".join(f"{queue.broker_name[:2]}{queue.queue_id}" for queue in queues)


@pytest.mark.parametrize("name", JAVA)
def test_allocation_equals_java(name: str):
    """A member of a mixed group gets the queues that Java's members leave to it."""
    strategy = STRATEGIES[name]
    got = tuple(short(strategy(member, QUEUES, MEMBERS)) for member in MEMBERS)
    assert got == JAVA[name]


@pytest.mark.parametrize("strategy", STRATEGIES.values())
def test_stranger_gets_nothing(strategy: Allocation):
    """A client that is not in the list of members owns no queue."""
    assert strategy("10.9.9.9@1", QUEUES, MEMBERS) == []


@pytest.mark.parametrize(
    "strategy", [allocate_averagely, allocate_by_circle, allocate_by_consistent_hash]
)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 13])
def test_every_queue_has_one_owner(strategy: Allocation, count: int):
    """However many members there are, each queue belongs to exactly one of them."""
    members = sorted(f"10.0.0.{number}@{number}" for number in range(count))
    owned = [queue for member in members for queue in strategy(member, QUEUES, members)]
    assert sorted(owned) == QUEUES


def test_config_takes_what_it_is_given():
    """A configured member reads exactly its queues, also when others are in the group."""
    own = [QUEUES[3], QUEUES[7]]
    strategy = allocate_by_config({"T": own, "U": [MessageQueue("U", "hz@a", 0)]})
    assert strategy(MEMBERS[1], QUEUES, MEMBERS) == own
