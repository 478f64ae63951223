"""The one door to the tables of topics and groups: what may be stored, whichever way it comes in.

A request that asks for something else is refused (`check_topic_config`, `check_group_config`). A
file, another replica or a Java master cannot be asked again: what they bring is made to fit
(`fit_topic_config`, `fit_group_config`). Whatever has passed the door fits a registration, and
every reader.

RocketMQ reads numbers into an int or a long: one beyond that in a state file, and a Java broker
does not start on the directory any more. Numbers of queues are bounded further, since every queue
is listed somewhere. Attributes of a topic are bounded, since a name server takes 64 KiB a topic.

Source: apache/rocketmq common/TopicConfig.java and
remoting/protocol/subscription/SubscriptionGroupConfig.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from mailboat.errors import IllegalMessageError
from mailboat.model.names import check_group, check_topic, is_file_name, retry_topic
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import FILTER_TYPES, TopicConfig
from mailboat.model.topic_attributes import check_attributes

MAX_QUEUE_NUMS: Final = 10_000
"""Most queues of one topic here; RocketMQ sets no limit, and its clients list every queue."""

MAX_ATTRIBUTES_BYTES: Final = 4096
"""Longest attributes of a topic or group, names and values together. RocketMQ's own take 200."""

INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


class Number(NamedTuple):
    """One number: its field here, its key in RocketMQ's JSON, and its limits, both inclusive."""

    field: str
    key: str
    lowest: int
    highest: int
    phrase: str = ""
    """What a topic or group cannot have, with the value in it; else the key with the value."""

    hint: str = ""
    """What to use; else the limits."""


TOPIC_NUMBERS: Final = (
    Number("read_queue_nums", "readQueueNums", 0, MAX_QUEUE_NUMS, "{} read queues"),
    Number("write_queue_nums", "writeQueueNums", 0, MAX_QUEUE_NUMS, "{} write queues"),
    Number("perm", "perm", 0, 7, "permission {}", "use 2 (write), 4 (read) or 6 (both)"),
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


def check_topic_config(config: TopicConfig, known: TopicConfig | None) -> None:
    """Refuse a topic that may not be stored; `known` is what it takes the place of.

    Raises:
        IllegalMessageError: the text names what is wrong with it, and what is allowed.
    """
    check_topic(config.topic_name)
    _check_all_but_name(config, known)


def check_derived_topic(config: TopicConfig) -> None:
    """Refuse a topic of a group's retries or dead letters that may not be stored.

    A group of an old directory may have a name that is not legal, and goes on with it.

    Raises:
        IllegalMessageError: the text names what is wrong with it, and what is allowed.
    """
    name = config.topic_name
    if not is_file_name(name):
        raise IllegalMessageError(f"topic name {name[:64]!r}... can be that of no folder")
    _check_all_but_name(config, None)


def _check_all_but_name(config: TopicConfig, known: TopicConfig | None) -> None:
    name = config.topic_name
    if config.topic_filter_type not in FILTER_TYPES:
        raise IllegalMessageError(
            f"topic {name} cannot have topicFilterType {config.topic_filter_type[:32]!r}; "
            f"use {' or '.join(FILTER_TYPES)}"
        )
    _check_numbers(f"topic {name}", config, TOPIC_NUMBERS)
    try:
        check_attributes(config.attributes, {} if known is None else known.attributes)
    except IllegalMessageError as error:
        raise IllegalMessageError(f"topic {name}: {error}") from error


def check_group_config(config: SubscriptionGroupConfig) -> None:
    """Refuse a consumer group that may not be stored.

    Raises:
        IllegalMessageError: the text names what is wrong with it, and what is allowed.
    """
    check_group_name(config.group_name)
    if config.attributes:
        name = next(iter(config.attributes))
        raise IllegalMessageError(f"group attribute {name[:32]!r} is not supported")
    _check_numbers(f"group {config.group_name}", config, GROUP_NUMBERS)


def check_group_name(group: str) -> None:
    """Refuse the name of a consumer group that may not be stored.

    Raises:
        IllegalMessageError: the text says why.
    """
    check_group(group)
    # A group is a name for its retry topic too.
    check_topic(retry_topic(group))


def fit_topic_config(name: str, config: TopicConfig) -> list[str] | None:
    """Make a topic fit that is `name` in somebody's table; return what was changed, for people.

    Returns None where it cannot be made to fit: no folder can have its name.
    """
    if not is_file_name(name):
        return None
    changed = _fit_name(config, "topic_name", "topicName", name)
    if config.topic_filter_type not in FILTER_TYPES:
        changed.append(
            f"topicFilterType={FILTER_TYPES[0]} instead of {config.topic_filter_type[:32]!r}"
        )
        config.topic_filter_type = FILTER_TYPES[0]
    changed += _fit_numbers(config, TOPIC_NUMBERS)
    config.attributes = _fit_attributes(config.attributes, changed)
    return changed


def fit_group_config(name: str, config: SubscriptionGroupConfig) -> list[str] | None:
    """Make a group fit that is `name` in somebody's table; return what was changed, for people.

    Returns None where it cannot be made to fit: its name is none.
    """
    if not is_file_name(name):
        return None
    changed = _fit_name(config, "group_name", "groupName", name)
    changed += _fit_numbers(config, GROUP_NUMBERS)
    config.attributes = _fit_attributes(config.attributes, changed)
    return changed


def shown(value: int) -> str:
    """Write a number of any size, a huge one by its order of magnitude."""
    if -INT64_MAX - 1 <= value <= INT64_MAX:
        return str(value)
    digits = int(value.bit_length() * 0.30103)
    return f"{'-' if value < 0 else ''}1e{digits} or so"


def _check_numbers(subject: str, config: object, numbers: Sequence[Number]) -> None:
    for number in numbers:
        value = getattr(config, number.field)
        if not number.lowest <= value <= number.highest:
            phrase = (number.phrase or f"{number.key}={{}}").format(shown(value))
            hint = number.hint or f"{number.lowest} to {number.highest} are allowed"
            raise IllegalMessageError(f"{subject} cannot have {phrase}; {hint}")


def _fit_name(config: object, field: str, key: str, name: str) -> list[str]:
    """Give an entry of a table the name that it has there."""
    said = getattr(config, field)
    if said == name:
        return []
    setattr(config, field, name)
    return [f"{key}={name} instead of {said[:32]!r}"]


def _fit_numbers(config: object, numbers: Sequence[Number]) -> list[str]:
    changed = []
    for number in numbers:
        value = getattr(config, number.field)
        fitting = min(max(value, number.lowest), number.highest)
        if fitting != value:
            setattr(config, number.field, fitting)
            changed.append(f"{number.key}={fitting} instead of {shown(value)}")
    return changed


def _fit_attributes(attributes: Mapping[str, str], changed: list[str]) -> dict[str, str]:
    """Return the attributes for which there is room, and say which others there were."""
    room = MAX_ATTRIBUTES_BYTES
    fitting = {}
    for name, value in attributes.items():
        size_bytes = len(name.encode("utf-8", "replace")) + len(value.encode("utf-8", "replace"))
        if size_bytes <= room:
            fitting[name] = value
            room -= size_bytes
    without = len(attributes) - len(fitting)
    if without:
        changed.append(f"{len(fitting)} attributes, {without} more are too long")
    return fitting
