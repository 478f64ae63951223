"""What a message must be before it is worth sending.

Source: apache/rocketmq client/Validators.java.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from mailboat.errors import IllegalMessageError
from mailboat.model.batch import MAX_BATCH_MESSAGES, TOO_MANY
from mailboat.model.message import Message
from mailboat.model.names import SEND_FORBIDDEN_TOPICS, check_topic, is_retry_or_dlq
from mailboat.model.properties import PropertyName

MAX_BODY_BYTES: Final = 4 * 1024 * 1024


def check_message(message: Message) -> None:
    """Refuse a message that a broker would refuse.

    Raises:
        IllegalMessageError: the topic's name is illegal or reserved, the body is empty or larger
            than 4 MiB, or the delay level is negative.
    """
    check_destination(message.topic)
    check_body_size(message.topic, len(message.body))
    if message.delay_level < 0:
        raise IllegalMessageError(
            f"delay_level {message.delay_level} of a message for topic {message.topic} is "
            "negative; levels begin at 1, and 0 delivers at once"
        )


def check_half_message(message: Message) -> None:
    """Refuse a message that cannot be part of a transaction.

    Raises:
        IllegalMessageError: as for a message outside of one, or it is delayed, or it goes to a
            group's own topic.
    """
    check_message(message)
    if is_delayed(message):
        raise IllegalMessageError(
            f"a message for topic {message.topic} cannot be both delayed and part of a transaction"
        )
    if is_retry_or_dlq(message.topic):
        raise IllegalMessageError(f"topic {message.topic} takes no transactions")


def is_delayed(message: Message) -> bool:
    """Tell whether the message asks to be delivered later."""
    return message.delay_level != 0 or PropertyName.DELAY in message.properties


def check_batch(messages: Sequence[Message]) -> None:
    """Refuse messages that cannot travel in one batch.

    Raises:
        IllegalMessageError: as for one message, or the batch is empty or holds too many, mixes
            topics or `wait_store_ok`, or holds what a batch cannot carry (delayed messages, retry
            topics).
    """
    if not messages:
        raise IllegalMessageError("a batch needs at least one message")
    if len(messages) > MAX_BATCH_MESSAGES:
        raise IllegalMessageError(TOO_MANY)
    first = messages[0]
    check_destination(first.topic)
    if is_retry_or_dlq(first.topic):
        raise IllegalMessageError(f"topic {first.topic} takes no batches; send one by one")
    for message in messages:
        if message.topic != first.topic:
            raise IllegalMessageError(
                f"a batch goes to one topic, not to {first.topic} and {message.topic}"
            )
        if message.wait_store_ok != first.wait_store_ok:
            raise IllegalMessageError("all messages of a batch need the same wait_store_ok")
        if is_delayed(message):
            raise IllegalMessageError("a batch cannot hold delayed messages; send them one by one")
        check_body_size(message.topic, len(message.body))


@lru_cache(maxsize=1024)
def check_destination(topic: str) -> None:
    """Refuse a topic that no program may send to.

    Raises:
        IllegalMessageError: the name is illegal, or the topic belongs to the broker itself.
    """
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS:
        raise IllegalMessageError(f"topic {topic} belongs to the broker; choose another one")


def check_body_size(topic: str, body_size_bytes: int) -> None:
    """Refuse a body that is empty or larger than 4 MiB.

    Raises:
        IllegalMessageError: it is.
    """
    if body_size_bytes == 0:
        raise IllegalMessageError(f"a message for topic {topic} has no body; RocketMQ needs one")
    if body_size_bytes > MAX_BODY_BYTES:
        raise IllegalMessageError(
            f"a body of {body_size_bytes} bytes for topic {topic} is too large; "
            f"at most {MAX_BODY_BYTES} bytes are allowed"
        )
