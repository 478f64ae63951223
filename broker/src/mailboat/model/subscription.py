"""What a group reads of a topic, and how the broker treats the group.

Source: apache/rocketmq remoting/protocol/heartbeat/SubscriptionData.java, filter/FilterAPI.java and
subscription/SubscriptionGroupConfig.java.
"""

from dataclasses import dataclass, field
from typing import Final

from mailboat.errors import IllegalMessageError
from mailboat.model.tags import java_hash

SUBSCRIBE_ALL: Final = "*"
EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"


@dataclass(slots=True)
class SubscriptionData:
    """A subscription to one topic; empty sets with `*` mean every message."""

    topic: str
    sub_string: str = SUBSCRIBE_ALL
    tags_set: set[str] = field(default_factory=set)
    code_set: set[int] = field(default_factory=set)
    sub_version: int = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False

    @property
    def takes_all(self) -> bool:
        """Every message passes."""
        return self.sub_string in ("", SUBSCRIBE_ALL)


@dataclass(slots=True)
class SubscriptionGroupConfig:
    """How the broker treats a consumer group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict)


def build_subscription(
    topic: str, expression: str | None, sub_version: int = 0
) -> SubscriptionData:
    """Parse a tag expression such as `TagA || TagB`; nothing or `*` takes every message.

    Raises:
        IllegalMessageError: the expression holds separators but no tag.
    """
    if expression is None or expression.strip() in ("", SUBSCRIBE_ALL):
        return SubscriptionData(topic, SUBSCRIBE_ALL, sub_version=sub_version)
    tags = {tag.strip() for tag in expression.split("||")} - {""}
    if not tags:
        raise IllegalMessageError(
            f"subscription {expression!r} of topic {topic} names no tag; write tags as 'a || b'"
        )
    codes = {java_hash(tag) for tag in tags}
    return SubscriptionData(topic, expression, tags, codes, sub_version)
