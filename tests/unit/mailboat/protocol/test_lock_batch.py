"""Promises of mailboat.protocol.lock_batch; the texts are what RocketMQ writes."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.lock_batch import (
    LockBatch,
    decode_lock_batch,
    decode_lock_names,
    decode_locked,
    encode_lock_batch,
    encode_locked,
)

FIRST, SECOND = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
JAVA_REQUEST = (
    b'{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"b","queueId":1,"topic":"T"},'
    b'{"brokerName":"b","queueId":0,"topic":"T"}],"onlyThisBroker":true}'
)
JAVA_ANSWER = b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'


def test_what_java_asks_is_read() -> None:
    """The order of the queues means nothing."""
    assert decode_lock_batch(JAVA_REQUEST) == LockBatch("G", "c", {FIRST, SECOND}, True)
    assert decode_lock_names(JAVA_REQUEST) == ("G", {"T"})


def test_a_request_without_queues_is_read() -> None:
    """4.x leaves onlyThisBroker out, and null stands for no queues."""
    body = b'{"clientId":"c","consumerGroup":"G","mqSet":null}'
    assert decode_lock_batch(body) == LockBatch("G", "c")
    assert decode_lock_names(body) == ("G", set())


def test_a_request_comes_back_as_it_was() -> None:
    """What a client writes is what the broker reads."""
    batch = LockBatch("G", "c", {FIRST, SECOND}, only_this_broker=True)
    assert decode_lock_batch(encode_lock_batch(batch)) == batch


def test_the_answer_is_javas() -> None:
    """Byte by byte, since Go cuts it by hand."""
    assert encode_locked({FIRST}) == JAVA_ANSWER
    assert encode_locked([]) == b'{"lockOKMQSet":[]}'
    assert decode_locked(JAVA_ANSWER) == {FIRST}
    assert decode_locked(b"{}") == set()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"consumerGroup":"G","clientId":1,"mqSet":2}']
)
def test_other_bodies_are_refused(body: bytes) -> None:
    """A request must say who asks for what."""
    with pytest.raises(RemoteProtocolError):
        decode_lock_batch(body)
    with pytest.raises(RemoteProtocolError):
        decode_lock_names(body)


@pytest.mark.parametrize("name", ["clientId", "consumerGroup", "brokerName", "topic"])
def test_a_name_has_a_length(name: str) -> None:
    """Each queue is kept with the id of its holder: a long one would be kept a thousand times."""
    value = {"clientId": b'"c"', "consumerGroup": b'"G"', "brokerName": b'"b"', "topic": b'"T"'}
    for length, is_read in ((1024, True), (1025, False)):
        body = JAVA_REQUEST.replace(
            b'"%s":%s' % (name.encode(), value[name]),
            b'"%s":"%s"' % (name.encode(), b"n" * length),
        )
        if is_read:
            decode_lock_batch(body)
            continue
        for decode in (decode_lock_batch, decode_lock_names):
            with pytest.raises(RemoteProtocolError, match="1024"):
                decode(body)
