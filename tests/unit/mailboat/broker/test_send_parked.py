"""Sends that wait for a topic: how many are stored together."""

from typing import Any

import pytest

from mailboat.broker.dispatcher import Send
from mailboat.broker.processors.send_parked import ParkedSends
from mailboat.broker.topic_creation import TopicCreation
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.send_header import SendFields, SendRequest


def _send(messages: int) -> Send:
    """Return a send, of a batch where it has several messages."""
    is_batch = messages > 1
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    fields = SendFields("P", "T", "TBW102", 4, 0, 0, 1, 0, batch=is_batch)
    keys = [f"U{number}" for number in range(messages)]
    body = encode_batch([Message("T", b"x")] * messages, keys) if is_batch else b"x"
    asker: Any = None
    return asker, SendRequest(code, fields), body


@pytest.mark.parametrize(
    ("messages", "sends", "steps"),
    [(1, 600, [256, 256, 88]), (200, 7, [3, 3, 1]), (1900, 3, [1, 1, 1])],
)
async def test_a_step_stores_what_takes_some_milliseconds(
    messages: int, sends: int, steps: list[int]
) -> None:
    """Batches count by their messages: each of those takes ten microseconds."""
    stored: list[int] = []
    parked = ParkedSends(lambda sends, _: stored.append(len(sends)), lambda _, __: None)
    creation = TopicCreation(TopicConfig("T", 4, 4), "test")
    for _ in range(sends):
        parked.park(creation, _send(messages))
    while not parked.store_some(creation):
        pass
    assert stored == steps
