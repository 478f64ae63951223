"""Pulls of a user wait until its quotas allow for an answer; then every message comes."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bounded_users import AGAIN, BUSY, SUCCESS, bound, broker_for, fill, make_users, pull, refusals
from guarded import Users, Wire, until, wire_to
from real_time import at_most_s

from mailboat.broker.controller import BrokerController
from mailboat.model.record import decode_records
from mailboat.protocol.codes import ResponseCode
from mailboat.security.quotas import Quotas


@pytest.fixture
def users() -> Users:
    """Return a Super user, and two that may use everything; one of them is bounded."""
    return make_users()


@pytest.fixture
async def broker(tmp_path: Path, users: Users) -> AsyncIterator[BrokerController]:
    """Run a broker with a topic and a group."""
    async with broker_for(tmp_path, users) as controller:
        yield controller


@pytest.fixture
async def wire(broker: BrokerController) -> AsyncIterator[Wire]:
    """Connect to the broker."""
    async with wire_to(broker) as connection:
        yield connection


# -- waiting for the quota ----------------------------------------------------------------------


async def consume(wire: Wire, count: int, **more: Any) -> tuple[int, list[float]]:
    """Pull until so many messages are there; return the requests, and when each answer came."""
    offset, requests, times = 0, 0, []
    while offset < count:
        requests += 1
        wire.write(pull(requests, queueOffset=offset, **more))
        [answer] = await wire.answers(1)
        times.append(time.monotonic())
        assert answer.code in (SUCCESS, AGAIN), answer.remark
        assert int(answer.ext_fields["nextBeginOffset"]) >= offset
        offset = int(answer.ext_fields["nextBeginOffset"])
    return requests, times


async def test_pulls_wait_until_the_quota_allows_for_an_answer(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """Every message comes, none is refused, and there are no more requests than tenths."""
    await fill(broker, 300)
    bound(users, fetch_messages_per_second=100)
    begin_s = time.monotonic()
    requests, times = await consume(wire, 300)
    taken_s = times[-1] - begin_s
    # 100 at once, 200 in two seconds.
    assert 1.9 <= taken_s < at_most_s(4, 20)
    assert requests <= 4 + 10 * taken_s + 4
    assert refusals(broker) == {}


async def test_pulls_by_bytes(broker: BrokerController, users: Users, wire: Wire) -> None:
    """Records are what goes over the wire: bodies and what is around them."""
    await fill(broker, 60, bytes(10_000))
    size_bytes = broker.store.commit_log.end / 60
    bound(users, fetch_bytes_per_second=200_000)
    begin_s = time.monotonic()
    requests, times = await consume(wire, 60)
    rest_s = (60 * size_bytes - 200_000 - size_bytes) / 200_000
    assert rest_s - 0.1 <= times[-1] - begin_s < rest_s + at_most_s(2, 20)
    assert requests < 60


async def test_a_message_larger_than_the_quota_comes(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """It is paid for afterwards."""
    await fill(broker, 2, bytes(3_000))
    bound(users, fetch_bytes_per_second=2_000)
    begin_s = time.monotonic()
    _, times = await consume(wire, 2)
    assert times[0] - begin_s < at_most_s(1, 20)
    assert times[-1] - begin_s >= 0.5


async def test_a_pull_whose_time_is_up_is_told_to_ask_again_from_where_it_was(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """So a client never waits longer than it said, and loses its place to nothing."""
    await fill(broker, 10, bytes(10_000))
    bound(users, fetch_bytes_per_second=1_000)
    wire.write(pull(1, maxMsgNums=1))
    assert await wire.codes(1) == {1: SUCCESS}
    begin_s = time.monotonic()
    wire.write(pull(2, queueOffset=1, suspendTimeoutMillis=300))
    [answer] = await wire.answers(1)
    assert 0.25 <= time.monotonic() - begin_s < at_most_s(2, 8)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (AGAIN, "1")
    assert answer.ext_fields["maxOffset"] == "10"


async def test_a_pull_that_waits_for_messages_waits_for_the_quota_too(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """A message that comes is not handed out before it may be, and then it is."""
    await fill(broker, 1, bytes(2_000))
    bound(users, fetch_bytes_per_second=2_000)
    wire.write(pull(2, queueOffset=1))
    await until(lambda: len(broker.pull_holds) == 1)
    wire.write(pull(1))
    assert await wire.codes(1) == {1: SUCCESS}
    begin_s = time.monotonic()
    await fill(broker, 1, bytes(10))
    [second] = await wire.answers(1)
    assert (second.opaque, second.code) == (2, SUCCESS)
    [message] = decode_records(second.body)
    assert message.queue_offset == 1
    assert time.monotonic() - begin_s >= 0.1
    assert len(broker.pull_holds) == 0


async def test_a_pull_that_waits_for_the_quota_goes_on_when_it_is_raised(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """At once, whether it is raised or taken away."""
    await fill(broker, 40, bytes(1_000))
    for number, quotas in enumerate((Quotas(fetch_bytes_per_second=10**9), None)):
        bound(users, fetch_bytes_per_second=1_000)
        await let_debt_be(wire)
        wire.write(pull(2))
        assert broker.quotas is not None
        [use] = broker.quotas.uses()
        await until(lambda use=use: len(use.turns) == 1)  # type: ignore[misc]
        begin_s = time.monotonic()
        users.change("bounded", quotas=quotas)
        [answer] = await wire.answers(1)
        assert (answer.opaque, answer.code, len(answer.body) > 0) == (2, SUCCESS, True), number
        assert time.monotonic() - begin_s < at_most_s(1, 10)
        users.change("bounded", quotas=None)


async def let_debt_be(wire: Wire) -> None:
    """Pull as much as a second's worth allows, and a message more."""
    for _ in range(2):
        wire.write(pull(1, maxMsgNums=1))
        await wire.answers(1)


# -- many pulls ---------------------------------------------------------------------------------


async def test_connections_of_a_user_take_turns(broker: BrokerController, users: Users) -> None:
    """One with many pulls gets no more answers than one with a single one."""
    await fill(broker, 2_000, bytes(1_000))
    bound(users, fetch_messages_per_second=40)
    counts = Counter[str]()
    is_over = False

    async def reader(name: str, pulls: int) -> None:
        async with wire_to(broker) as own:
            own.write(*(pull(n, maxMsgNums=1) for n in range(pulls)))
            while not is_over:
                answers = await own.answers(1)
                counts[name] += answers[0].code == SUCCESS
                own.write(pull(answers[0].opaque, maxMsgNums=1))

    tasks = [asyncio.create_task(reader("many", 50)), asyncio.create_task(reader("one", 1))]
    await asyncio.sleep(1.5)
    counts.clear()
    await asyncio.sleep(2)
    is_over = True
    await asyncio.gather(*tasks)
    assert counts["one"] >= 20
    assert counts.total() <= 40 * 4


async def test_pulls_that_wait_are_bounded(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """The next one is refused as by a busy broker; the end of one or of its connection counts."""
    bound(users, held_pulls=2)
    wire.write(*(pull(n, queueId=n) for n in range(3)))
    [answer] = await wire.answers(1)
    assert (answer.opaque, answer.code) == (2, BUSY)
    assert answer.remark is not None
    assert "its quota (heldPulls) is 2" in answer.remark
    async with wire_to(broker) as other:
        other.write(pull(3, queueId=2))
        assert await other.codes(1) == {3: BUSY}
        await fill(broker, 1)
        assert await wire.codes(1) == {0: SUCCESS}
        other.write(pull(4, queueId=2))
        await until(lambda: len(broker.pull_holds) == 2)
        wire.write(pull(5, queueId=3))
        assert await wire.codes(1) == {5: BUSY}
    await until(lambda: len(broker.pull_holds) == 1)
    wire.write(pull(6, queueId=3))
    await until(lambda: len(broker.pull_holds) == 2)
    users.change("bounded", is_enabled=False)
    assert set((await wire.codes(2)).values()) == {ResponseCode.NO_PERMISSION}
    assert broker.quotas is not None
    assert [use.held_pulls for use in broker.quotas.uses()] == [0]


async def test_a_pull_that_waits_for_its_quota_may_go_on_to_wait_for_a_message(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """It is one and the same pull: it needs no second place."""
    await fill(broker, 1, bytes(400))
    bound(users, held_pulls=1, fetch_bytes_per_second=1_000)
    wire.write(pull(1))
    assert await wire.codes(1) == {1: SUCCESS}
    await fill(broker, 1, bytes(900))
    wire.write(pull(2, queueOffset=1))
    assert await wire.codes(1) == {2: SUCCESS}
    wire.write(pull(3, queueOffset=2))
    await until(lambda: len(broker.pull_holds) == 1)
    await fill(broker, 1)
    assert await wire.codes(1) == {3: SUCCESS}
    assert refusals(broker) == {}


# -- what is on the disk only -------------------------------------------------------------------


async def test_reads_from_the_disk_keep_to_the_quota_together(
    broker: BrokerController, users: Users
) -> None:
    """What they will have is taken before they read: many at a time get no more than one."""
    await fill(broker, 40, bytes(10_000))
    # As nobody may set it: every message counts as one that is on the disk only.
    broker.store.configure(replace(broker.settings.store, access_message_in_memory_max_ratio=0))
    assert not broker.store.warming.is_hot(broker.store.queues.get("T", 0), 0)
    bound(users, fetch_bytes_per_second=100_000)
    size_bytes = broker.store.commit_log.end / 40
    begin_s = time.monotonic()
    counts = await asyncio.gather(*(read_all(broker, 12) for _ in range(5)))
    taken_s = time.monotonic() - begin_s
    assert counts == [12] * 5
    # Each answer may be one message longer than there is room for.
    assert taken_s >= (60 * size_bytes - 100_000 - 5 * size_bytes) / 100_000
    assert taken_s < 12
    assert refusals(broker) == {}


async def test_pulls_that_wait_for_the_disk_get_no_more_than_the_quota(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """Each was let through when there was room in it; all of them together are too many."""
    await fill(broker, 600)
    broker.store.configure(replace(broker.settings.store, access_message_in_memory_max_ratio=0))
    bound(users, fetch_messages_per_second=200)
    begin_s = time.monotonic()
    wire.write(*(pull(number, queueOffset=number, maxMsgNums=1) for number in range(600)))
    answers = await wire.answers(600)
    taken_s = time.monotonic() - begin_s
    assert {answer.code for answer in answers} == {SUCCESS}
    assert len({answer.body for answer in answers}) == 600
    # 200 at once, 400 in two seconds.
    assert 1.9 <= taken_s < 8.0
    assert broker.quotas is not None
    assert [use.held_pulls for use in broker.quotas.uses()] == [0]


async def read_all(broker: BrokerController, count: int) -> int:
    """Pull so many messages over a connection of its own; return how many came."""
    async with wire_to(broker) as wire:
        offset = 0
        while offset < count:
            wire.write(pull(offset, queueOffset=offset, maxMsgNums=count - offset))
            [answer] = await wire.answers(1)
            offset += len(decode_records(answer.body))
    return offset
