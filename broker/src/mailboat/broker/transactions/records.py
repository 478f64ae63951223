"""What transactions store: half messages, the messages made of them, and records of ends.

    half message   RMQ_SYS_TRANS_HALF_TOPIC, queue 0; REAL_TOPIC and REAL_QID say where it belongs
    op record      RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0; tag "d"; the body lists the queue offsets
                   of half messages that have ended, joined by commas
    given up       TRANS_CHECK_MAX_TIME_TOPIC, queue 0; the half message as it was

Source: apache/rocketmq broker/transaction/queue/TransactionalMessageBridge.java and
TransactionalMessageUtil.java, broker/processor/EndTransactionProcessor.java.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mailboat.broker.stored_message import inner_of, park, stored_form
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from mailboat.model.properties import PropertyName
from mailboat.model.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from mailboat.model.tags import tags_code
from mailboat.protocol.codes import ResponseCode
from mailboat.store.message_inner import MessageInner

TRANSACTION_ID: Final = "__transactionId__"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"

_ENDED_TAG: Final = "d"
_SEPARATOR: Final = ","
_OFFSET_DIGITS: Final = 19
_MARKS_OF_A_HALF: Final = (
    PropertyName.TRANSACTION_PREPARED,
    PropertyName.REAL_TOPIC,
    PropertyName.REAL_QUEUE_ID,
)


def half_message(message: MessageInner, properties: Mapping[str, str]) -> MessageInner:
    """Make a message with TRAN_MSG one of the half topic; it is changed and returned.

    Raises:
        BrokerError: it names no producer group, or is to be delayed as well.
    """
    if not properties.get(PropertyName.PRODUCER_GROUP):
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal: a transaction message (property TRAN_MSG) needs its "
            "producer group in the property PGROUP",
        )
    if _number(properties.get(PropertyName.DELAY), 0) > 0:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal: a transaction message (property TRAN_MSG) cannot be delayed "
            "(property DELAY)",
        )
    kept = dict(properties)
    unique_key = properties.get(PropertyName.UNIQ_KEY)
    if unique_key:
        kept[TRANSACTION_ID] = unique_key
    message.sys_flag &= ~TRANSACTION_MASK
    return park(message, kept, HALF_TOPIC, 0)


def committed_message(half: MessageExt, queue_id: int, checks: int) -> MessageInner:
    """Make the message that consumers get of a half message.

    Args:
        half: the stored half message.
        queue_id: the queue of its real topic.
        checks: how often somebody was asked about it.
    """
    properties = with_checks(half, checks)
    for name in _MARKS_OF_A_HALF:
        properties.pop(name, None)
    message = inner_of(half, real_topic(half), queue_id, properties)
    message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.physical_offset
    return message


def given_up_message(half: MessageExt, checks: int) -> MessageInner:
    """Make the message that keeps a half message nobody has ended."""
    return inner_of(half, CHECK_MAX_TIME_TOPIC, 0, with_checks(half, checks))


def resumed_message(given_up: MessageExt) -> MessageInner:
    """Make a half message again of one that was given up; checks begin anew."""
    properties = given_up.properties | {CHECK_TIMES: "0"}
    return inner_of(given_up, HALF_TOPIC, 0, properties)


def op_messages(
    half_offsets: Iterable[int], size_max: int, now_ms: int, host: bytes
) -> Iterator[tuple[list[int], MessageInner]]:
    """Yield records that say that half messages have ended, each with the offsets that it names.

    Args:
        half_offsets: their queue offsets.
        size_max: a record with a body of so many bytes takes no further one.
        now_ms: when they ended.
        host: this broker, which such records come from.
    """
    named: list[int] = []
    size_bytes = 0
    for offset in half_offsets:
        named.append(offset)
        size_bytes += len(str(offset)) + 1
        if size_bytes >= size_max:
            yield named, _op_message(named, now_ms, host)
            named, size_bytes = [], 0
    if named:
        yield named, _op_message(named, now_ms, host)


def _op_message(half_offsets: list[int], now_ms: int, host: bytes) -> MessageInner:
    # RocketMQ 4 reads one number and no separator; that is what a broker at ease writes.
    body = _SEPARATOR.join(map(str, half_offsets)).encode()
    properties = stored_form({PropertyName.TAGS: _ENDED_TAG})
    code = tags_code(_ENDED_TAG)
    return MessageInner(OP_HALF_TOPIC, 0, body, properties, code, None, None, 0, 0, now_ms, host)


def ended_offsets(record: MessageExt) -> list[int]:
    """Return the half messages that an op record names; what is no number is left out."""
    if record.tags != _ENDED_TAG:
        return []
    texts = record.body.decode("utf-8", "replace").split(_SEPARATOR)
    return [
        int(text)
        for text in texts
        if len(text) <= _OFFSET_DIGITS and text.isascii() and text.isdigit()
    ]


def real_topic(half: MessageExt) -> str:
    """Return the topic that a half message belongs to, "" when it does not say."""
    return half.properties.get(PropertyName.REAL_TOPIC, "")


def real_queue_id(half: MessageExt) -> int:
    """Return the queue that a half message belongs to."""
    return max(_number(half.properties.get(PropertyName.REAL_QUEUE_ID), 0), 0)


def stored_checks(half: MessageExt) -> int:
    """Return how many checks a half message counts itself: another broker's, or none."""
    return max(_number(half.properties.get(CHECK_TIMES), 0), 0)


def immunity_s(half: MessageExt, timeout_s: float) -> float:
    """Return for how long after its arrival nobody is asked about a half message."""
    seconds = _number(half.properties.get(IMMUNITY), -1)
    return timeout_s if seconds < 0 else float(seconds)


def with_checks(half: MessageExt, checks: int) -> dict[str, str]:
    """Return the properties of a half message, with the number of its checks if there were any."""
    if not checks:
        return dict(half.properties)
    return half.properties | {CHECK_TIMES: str(checks)}


def _number(text: str | None, default: int) -> int:
    if text is None or len(text) > 18:
        return default
    try:
        return int(text)
    except ValueError:
        return default
