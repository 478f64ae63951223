"""A topic's configuration.

Source: apache/rocketmq common/TopicConfig.java and common/constant/PermName.java.
"""

from dataclasses import dataclass, field
from typing import Final


class Perm:
    """Bits of a topic's or broker's permission."""

    PRIORITY: Final = 8
    READ: Final = 4
    WRITE: Final = 2
    INHERIT: Final = 1


FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
"""Values of `topic_filter_type`; the first one is the default."""


@dataclass(slots=True)
class TopicConfig:
    """Queues and permissions of one topic on one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = Perm.READ | Perm.WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def is_readable(self) -> bool:
        """Consumers may pull."""
        return bool(self.perm & Perm.READ)

    @property
    def is_writable(self) -> bool:
        """Producers may send."""
        return bool(self.perm & Perm.WRITE)
