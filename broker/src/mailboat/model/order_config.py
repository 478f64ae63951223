"""Which queues the producers of an ordered topic use: `broker-a:8;broker-b:8`.

Name servers keep it by topic, and every route of the topic carries it.

Source: apache/rocketmq client/impl/factory/MQClientInstance.java (topicRouteData2TopicPublishInfo)
@ rocketmq-all-5.3.3.
"""

from collections.abc import Mapping
from typing import Final

from mailboat.errors import IllegalMessageError
from mailboat.model.stored_configs import MAX_QUEUE_NUMS

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Where name servers keep these texts, by topic."""

_DIGITS: Final = len(str(MAX_QUEUE_NUMS))


def encode_order(queues: Mapping[str, int]) -> str:
    """Write how many queues producers use, by broker name."""
    return ";".join(f"{name}:{nums}" for name, nums in sorted(queues.items()))


def decode_order(text: str) -> dict[str, int]:
    """Read how many queues producers use, by broker name; what is not of the form is left out."""
    return {name: nums for name, nums in map(_part, text.split(";")) if name}


def check_order(text: str) -> None:
    """Refuse a text of which `decode_order` would leave something out.

    Raises:
        IllegalMessageError: the text names what is wrong with it.
    """
    for part in filter(None, text.split(";")):
        if not _part(part)[0]:
            raise IllegalMessageError(
                f"the order configuration cannot have {part[:64]!r}; write broker-a:8;broker-b:8, "
                f"with 0 to {MAX_QUEUE_NUMS} queues each"
            )


def _part(text: str) -> tuple[str, int]:
    """Read one broker's part; one without a name is none."""
    name, _, digits = text.rpartition(":")
    if not (len(digits) <= _DIGITS and digits.isascii() and digits.isdigit()):
        return "", 0
    nums = int(digits)
    return (name, nums) if nums <= MAX_QUEUE_NUMS else ("", 0)
