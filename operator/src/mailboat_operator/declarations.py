"""Gives a new broker what the others were told: the topics and consumer groups that they all have.

What one of them alone has may be meant for it alone, and stays there.
"""

from collections.abc import Sequence
from typing import Any

from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.kube_api import KubeApi
from mailboat_operator.planner.snapshot import Manifest

_AT_ONCE = 500
_KEYS = {"topics": "topic_name", "groups": "group_name"}


async def copy_declarations(
    api: KubeApi, brokers: BrokerApi, sources: Sequence[str], target: str
) -> dict[str, int]:
    """Make on one broker the topics and consumer groups that all the others have.

    Args:
        api: Says for how long this process may write.
        brokers: The brokers' HTTP APIs.
        sources: Base URLs of the brokers that have them.
        target: Base URL of the broker that gets them; what it has is not changed.

    Returns:
        How many were made, by kind.
    """
    made = {}
    for kind, key in _KEYS.items():
        first, *others = [await _declared(brokers, url, kind, key) for url in sources]
        common = [item for name, item in first.items() if all(name in other for other in others)]
        made[kind] = 0
        for start in range(0, len(common), _AT_ONCE):
            answer = await brokers.declare(
                target,
                {kind: common[start : start + _AT_ONCE]},
                within_s=api.time_to_write_s(),
            )
            made[kind] += int(answer.get(kind) or 0)
    return made


async def _declared(brokers: BrokerApi, url: str, kind: str, key: str) -> dict[str, Manifest]:
    found: dict[str, Any] = {}
    after: str | None = ""
    while after is not None:
        page = await brokers.declared(url, kind, after)
        found |= {item[key]: item for item in page[kind]}
        after = page.get("next")
    return found
