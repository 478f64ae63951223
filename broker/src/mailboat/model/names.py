"""Names of topics and groups: what is legal, what is reserved, what derives from what.

Source: apache/rocketmq common/topic/TopicValidator.java and common/MixAll.java.
"""

import re
from typing import Final

from mailboat.errors import IllegalMessageError

MAX_TOPIC_LENGTH: Final = 127
MAX_RETRY_TOPIC_LENGTH: Final = 255
MAX_GROUP_LENGTH: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"

SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
SYSTEM_TOPICS: Final = SEND_FORBIDDEN_TOPICS | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
TRANSACTIONS_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The broker's own group: its offsets say how far half messages and op records are dealt with."""

SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTIONS_GROUP,
)

_MAX_FILE_NAME_BYTES: Final = 255
_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """Return the topic that holds a group's messages to be tried again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic that holds a group's dead letters."""
    return DLQ_PREFIX + group


def is_retry_or_dlq(topic: str) -> bool:
    """Tell whether a topic belongs to a group."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def is_system_topic(topic: str) -> bool:
    """Tell whether a topic is one of the broker's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def check_topic(topic: str) -> None:
    """Refuse a topic name that no broker would take.

    Raises:
        IllegalMessageError: empty, too long, or holding a character outside `[%|a-zA-Z0-9_-]`.
    """
    limit = MAX_RETRY_TOPIC_LENGTH if is_retry_or_dlq(topic) else MAX_TOPIC_LENGTH
    _check("topic", topic, limit)


def check_group(group: str) -> None:
    """Refuse a producer or consumer group name that no broker would take.

    Raises:
        IllegalMessageError: empty, too long, or holding a character outside `[%|a-zA-Z0-9_-]`.
    """
    _check("group", group, MAX_GROUP_LENGTH)


def is_file_name(name: str) -> bool:
    """Tell whether a name can be a file of its own and nothing else: no way up, no separator.

    Wider than what is legal: topics of an old directory keep their names.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= _MAX_FILE_NAME_BYTES


def _check(kind: str, name: str, limit: int) -> None:
    if not name:
        raise IllegalMessageError(f"the {kind} name is empty; give it a name")
    if len(name) > limit:
        raise IllegalMessageError(
            f"{kind} name {name[:32]!r}... has {len(name)} characters; at most {limit} are allowed"
        )
    if not _LEGAL.fullmatch(name):
        raise IllegalMessageError(
            f"{kind} name {name!r} holds an illegal character; only % | a-z A-Z 0-9 _ - are allowed"
        )
