import asyncio

import pytest

from mailboat.client.pulling import PullResult, PullStatus
from mailboat.client.queue_buffer import MAX_MESSAGES, QueueBuffer
from mailboat.model.message import MessageExt
from mailboat.model.subscription import SubscriptionData


def pulled(offsets: list[int], next_offset: int) -> PullResult:
    """Return a pull result that holds messages with these offsets."""
    result = PullResult(PullStatus.FOUND, next_offset, 0, 1000, b"", SubscriptionData("T"))
    result._messages = [
        MessageExt("T", b"x", 0, at, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, {})
        for at in offsets
    ]
    return result


@pytest.fixture
def arrived() -> asyncio.Event:
    """Return the event that the consumer waits for."""
    return asyncio.Event()


def test_messages_come_out_in_order_and_move_the_position(arrived: asyncio.Event):
    """The position is behind the last message given, not behind the last one read."""
    buffer = QueueBuffer(5, arrived)
    buffer.take(pulled([5, 6, 7], 8))
    buffer.take(pulled([8, 9], 10))
    assert arrived.is_set()
    assert [message.queue_offset for message in buffer.give(4)] == [5, 6, 7, 8]
    assert buffer.position == 9
    assert [message.queue_offset for message in buffer.give(4)] == [9]
    assert (buffer.position, buffer.is_empty) == (10, True)


def test_filtered_tail_counts_once_all_is_given(arrived: asyncio.Event):
    """Offsets behind the last message that were filtered out are passed with that message."""
    buffer = QueueBuffer(0, arrived)
    buffer.take(pulled([0, 1], 32))
    buffer.give(1)
    assert buffer.position == 1
    buffer.give(1)
    assert buffer.position == 32


def test_empty_pull_moves_the_position(arrived: asyncio.Event):
    """A pull that matched nothing moves an empty buffer on and wakes nobody."""
    buffer = QueueBuffer(0, arrived)
    buffer.take(pulled([], 64))
    assert (buffer.position, arrived.is_set()) == (64, False)


def test_empty_pull_does_not_skip_waiting_messages(arrived: asyncio.Event):
    """A pull that matched nothing leaves the position before messages not given yet."""
    buffer = QueueBuffer(0, arrived)
    buffer.take(pulled([0], 1))
    buffer.take(pulled([], 64))
    assert buffer.position == 0
    buffer.give(10)
    assert buffer.position == 64


async def test_full_buffer_stops_the_reader(arrived: asyncio.Event):
    """The reader waits above the limit and goes on when messages were given."""
    buffer = QueueBuffer(0, arrived)
    buffer.take(pulled(list(range(MAX_MESSAGES)), MAX_MESSAGES))
    waiting = asyncio.ensure_future(buffer.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.give(1)
    await waiting
