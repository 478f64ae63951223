"""The numbers of topics and groups that are stored and handed on, and what each may be.

RocketMQ reads them into an int or a long: one beyond that in a state file, and a Java broker does
not start on the directory any more. Numbers of queues are bounded further, since every queue is
listed somewhere.

Source: apache/rocketmq common/TopicConfig.java and
remoting/protocol/subscription/SubscriptionGroupConfig.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from mailboat.errors import IllegalMessageError
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig

MAX_QUEUE_NUMS: Final = 10_000
"""Most queues of one topic here; RocketMQ sets no limit, and its clients list every queue."""

INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


class Number(NamedTuple):
    """One number: its field here, its key in RocketMQ's JSON, and its limits, both inclusive."""

    field: str
    key: str
    lowest: int
    highest: int


TOPIC_NUMBERS: Final = (
    Number("read_queue_nums", "readQueueNums", 0, MAX_QUEUE_NUMS),
    Number("write_queue_nums", "writeQueueNums", 0, MAX_QUEUE_NUMS),
    Number("perm", "perm", 0, 7),
    Number("topic_sys_flag", "topicSysFlag", INT32_MIN, INT32_MAX),
)
GROUP_NUMBERS: Final = (
    Number("retry_queue_nums", "retryQueueNums", 0, MAX_QUEUE_NUMS),
    Number("retry_max_times", "retryMaxTimes", INT32_MIN, INT32_MAX),
    Number("broker_id", "brokerId", 0, INT64_MAX),
    Number("which_broker_when_consume_slowly", "whichBrokerWhenConsumeSlowly", 0, INT64_MAX),
    Number("group_sys_flag", "groupSysFlag", INT32_MIN, INT32_MAX),
    Number("consume_timeout_minute", "consumeTimeoutMinute", INT32_MIN, INT32_MAX),
)


def check_topic_numbers(config: TopicConfig) -> None:
    """Refuse a topic with a number out of its limits.

    Raises:
        IllegalMessageError: the text names the number and its limits.
    """
    _check(f"topic {config.topic_name}", config, TOPIC_NUMBERS)


def check_group_numbers(config: SubscriptionGroupConfig) -> None:
    """Refuse a group with a number out of its limits.

    Raises:
        IllegalMessageError: the text names the number and its limits.
    """
    _check(f"group {config.group_name}", config, GROUP_NUMBERS)


def fit_topic_numbers(config: TopicConfig) -> list[str]:
    """Bring the numbers of a topic within their limits; return what was changed, for people."""
    return _fit(config, TOPIC_NUMBERS)


def fit_group_numbers(config: SubscriptionGroupConfig) -> list[str]:
    """Bring the numbers of a group within their limits; return what was changed, for people."""
    return _fit(config, GROUP_NUMBERS)


def shown(value: int) -> str:
    """Write a number of any size, a huge one by its order of magnitude."""
    if -INT64_MAX - 1 <= value <= INT64_MAX:
        return str(value)
    digits = int(value.bit_length() * 0.30103)
    return f"{'-' if value < 0 else ''}1e{digits} or so"


def _check(subject: str, config: object, numbers: Sequence[Number]) -> None:
    for field, key, lowest, highest in numbers:
        value = getattr(config, field)
        if not lowest <= value <= highest:
            raise IllegalMessageError(
                f"{subject} cannot have {key}={shown(value)}; {lowest} to {highest} are allowed"
            )


def _fit(config: object, numbers: Sequence[Number]) -> list[str]:
    changed = []
    for field, key, lowest, highest in numbers:
        value = getattr(config, field)
        fitting = min(max(value, lowest), highest)
        if fitting != value:
            setattr(config, field, fitting)
            changed.append(f"{key}={fitting} instead of {shown(value)}")
    return changed
