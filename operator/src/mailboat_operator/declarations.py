"""Gives a new broker what the others were told: the topics and consumer groups that they all have.

What one of them alone has may be meant for it alone, and stays there.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from mailboat_operator.broker_api import BrokerApi, BrokerApiError
from mailboat_operator.kube_api import KubeApi
from mailboat_operator.planner.snapshot import Manifest

_AT_ONCE = 500
_MOST_PAGES: Final = 500
"""Of 1,000 names each; name servers take 300,000 topics."""

_LONGEST_S: Final = 120.0
"""So long all of it may take; a later turn begins anew, and finds less to make."""

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

    Raises:
        BrokerApiError: a broker did not answer as agreed, or it took too long.
    """
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await _copy(api, brokers, sources, target)
    except TimeoutError as error:
        raise BrokerApiError(f"topics and groups were not copied in {_LONGEST_S:g} s") from error


async def _copy(
    api: KubeApi, brokers: BrokerApi, sources: Sequence[str], target: str
) -> dict[str, int]:
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
    after = ""
    for _ in range(_MOST_PAGES):
        page = await brokers.declared(url, kind, after)
        found |= {item[key]: item for item in page[kind]}
        if page.get("next") is None:
            return found
        after = page["next"]
    raise BrokerApiError(f"{url} has more than {_MOST_PAGES} pages of {kind}")
