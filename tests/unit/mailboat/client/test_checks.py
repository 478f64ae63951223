import pytest

from mailboat.client.checks import MAX_BODY_BYTES, check_batch, check_message
from mailboat.errors import IllegalMessageError
from mailboat.model.message import Message


def test_largest_body_is_accepted():
    """A body of exactly 4 MiB may be sent, as brokers take it."""
    check_message(Message("T", bytes(4 * 1024 * 1024)))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("", b"x"), "topic name is empty"),
        (Message("a b", b"x"), "illegal character"),
        (Message("x" * 128, b"x"), "at most 127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the broker"),
        (Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"), "belongs to the broker"),
        (Message("T", b""), "no body"),
        (Message("T", b"x", delay_level=-1), "negative"),
        (Message("T", bytes(MAX_BODY_BYTES + 1)), "too large"),
    ],
)
def test_bad_message_is_refused(message: Message, reason: str):
    """What a broker would refuse is refused here, with the reason."""
    with pytest.raises(IllegalMessageError, match=reason):
        check_message(message)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("U", b"x")], "one topic"),
        ([Message("T", b"x"), Message("T", b"x", wait_store_ok=False)], "wait_store_ok"),
        ([Message("T", b"x", properties={"DELAY": "3"})], "delayed"),
        ([Message("T", b"x", delay_level=3)], "delayed"),
        ([Message("%RETRY%g", b"x")], "no batches"),
        ([Message("T", b"x"), Message("T", b"")], "no body"),
    ],
)
def test_bad_batch_is_refused(messages: list[Message], reason: str):
    """A batch that cannot travel as one request is refused as a whole."""
    with pytest.raises(IllegalMessageError, match=reason):
        check_batch(messages)


def test_plain_batch_is_accepted():
    """Messages of one topic may travel together, whatever their tags."""
    check_batch([Message("T", b"x", tags="a"), Message("T", b"y", keys="k")])
