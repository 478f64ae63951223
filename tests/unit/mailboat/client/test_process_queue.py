import asyncio

import pytest

from mailboat.client.process_queue import FlowLimits, ProcessQueue
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


def message_at(queue_offset: int, body: bytes = b"x") -> MessageExt:
    """Return a message with that offset."""
    return MessageExt("T", body, 0, queue_offset, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, {})


def has_room(process_queue: ProcessQueue) -> bool:
    """Tell whether the puller may go on at once."""
    waiting = process_queue.wait_for_room()
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


def test_commit_offset_is_the_lowest_unfinished():
    """Messages finished out of order move the commit offset only up to the first gap."""
    process_queue = ProcessQueue(QUEUE, 10)
    messages = [message_at(offset) for offset in (10, 11, 12, 13)]
    process_queue.put(messages, 14)
    assert process_queue.commit_offset == 10
    assert process_queue.finish([messages[2]]) == 10
    assert process_queue.finish([messages[0]]) == 11
    assert process_queue.finish([messages[1]]) == 13
    assert process_queue.finish([messages[3]]) == 14


def test_span_is_between_unfinished_messages():
    """Messages that were finished behind an unfinished one make it no longer."""
    process_queue = ProcessQueue(QUEUE, 0)
    messages = [message_at(offset) for offset in (3, 5, 8, 9)]
    process_queue.put(messages, 10)
    assert process_queue.span == 6
    process_queue.finish(messages[2:])
    assert (process_queue.span, process_queue.commit_offset) == (2, 3)
    process_queue.finish(messages[:2])
    assert (process_queue.span, process_queue.commit_offset, len(process_queue)) == (0, 10, 0)


def test_filtered_offsets_count_as_finished():
    """Offsets whose messages were filtered out are committed once those before them are done."""
    process_queue = ProcessQueue(QUEUE, 0)
    message = message_at(5)
    process_queue.put([message], 32)
    assert process_queue.commit_offset == 5
    assert process_queue.finish([message]) == 32
    process_queue.put([], 64)
    assert process_queue.commit_offset == 64


@pytest.mark.parametrize(
    ("limits", "bodies", "offsets"),
    [
        (FlowLimits(max_messages=3), [b"x"] * 4, [0, 1, 2, 3]),
        (FlowLimits(max_bytes=100), [b"x" * 60, b"y" * 60], [0, 1]),
        (FlowLimits(max_span=50), [b"x", b"x"], [0, 51]),
    ],
)
async def test_flow_control_stops_and_releases(
    limits: FlowLimits, bodies: list[bytes], offsets: list[int]
):
    """Too many messages, bytes or offsets stop the puller; finishing the first lets it go on."""
    process_queue = ProcessQueue(QUEUE, 0, limits)
    messages = [message_at(at, body) for at, body in zip(offsets, bodies, strict=True)]
    process_queue.put(messages[:-1], offsets[-1])
    assert has_room(process_queue)
    process_queue.put(messages[-1:], offsets[-1] + 1)
    assert not has_room(process_queue)
    waiting = asyncio.ensure_future(process_queue.wait_for_room())
    process_queue.finish(messages[:1])
    await waiting


def test_default_limits_are_rocketmqs():
    """1000 messages, 100 MiB and a span of 2000 may be unfinished."""
    assert FlowLimits() == FlowLimits(1000, 104857600, 2000)


async def test_drop_wakes_the_puller():
    """A puller that waits for room of a queue that goes away does not wait for ever."""
    process_queue = ProcessQueue(QUEUE, 0, FlowLimits(max_messages=0))
    process_queue.put([message_at(0)], 1)
    waiting = asyncio.ensure_future(process_queue.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    process_queue.drop()
    await waiting


def test_move_forgets_what_was_unfinished():
    """After a move the old messages neither hold the commit offset back nor finish new ones."""
    process_queue = ProcessQueue(QUEUE, 100)
    old = message_at(100)
    process_queue.put([old], 101)
    process_queue.move(50)
    assert (process_queue.commit_offset, process_queue.bytes_held) == (50, 0)
    new = message_at(100)
    process_queue.put([new], 101)
    assert process_queue.finish([old]) == 100
    assert process_queue.finish([new]) == 101


def test_first_messages_have_one_topic_and_stay_unfinished():
    """The next batch of an orderly consumer ends where another topic begins."""
    process_queue = ProcessQueue(QUEUE, 0)
    messages = [message_at(offset) for offset in range(4)]
    messages[3].topic = "U"
    process_queue.put(messages, 4)
    assert process_queue.first(2) == messages[:2]
    assert process_queue.first(8) == messages[:3]
    assert process_queue.commit_offset == 0
    process_queue.finish(messages[:3])
    assert process_queue.first(8) == messages[3:]
