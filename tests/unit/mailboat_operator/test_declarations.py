"""What a new broker gets of the others."""

import asyncio
from typing import Any, cast

import pytest

from mailboat_operator import declarations
from mailboat_operator.broker_api import BrokerApi, BrokerApiError
from mailboat_operator.declarations import copy_declarations
from mailboat_operator.kube_api import KubeApi
from mailboat_operator.metrics import OperatorMetrics


class FakeDeclarations:
    """A broker's topics and groups."""

    def __init__(self, topics: int, groups: int) -> None:
        """Have so many."""
        self.names = {
            "topics": [f"t{number:05}" for number in range(topics)],
            "groups": [f"g{number:05}" for number in range(groups)],
        }

    def page(self, kind: str, after: str) -> dict[str, Any]:
        """Return a page."""
        names = [name for name in self.names[kind] if name > after][:1000]
        key = {"topics": "topic_name", "groups": "group_name"}[kind]
        following = names[-1] if len(names) == 1000 else None
        return {kind: [{key: name} for name in names], "next": following}

    def take(self, body: dict[str, Any]) -> dict[str, int]:
        """Make what is there."""
        for kind, items in body.items():
            assert len(items) <= 1000
            self.names[kind] += [next(iter(item.values())) for item in items]
        return {kind: len(items) for kind, items in body.items()}


async def test_what_all_sources_have_is_copied() -> None:
    """What all sources have is made on the target, page by page."""
    sources, target = [FakeDeclarations(1500, 1), FakeDeclarations(1499, 0)], FakeDeclarations(0, 0)
    brokers = {"http://a": sources[0], "http://b": sources[1], "http://c": target}

    class Pages(BrokerApi):
        async def declared(self, url: str, kind: str, after: str) -> dict[str, Any]:
            return brokers[url].page(kind, after)

        async def declare(self, url: str, body: Any, *, within_s: float = 0.0) -> dict[str, Any]:
            return brokers[url].take(body)

    class Leader:
        def time_to_write_s(self) -> float:
            return 1.0

    made = await copy_declarations(
        cast(KubeApi, Leader()), Pages(OperatorMetrics()), ["http://a", "http://b"], "http://c"
    )
    assert made == {"topics": 1499, "groups": 0}
    assert len(target.names["topics"]) == 1499


async def test_pages_without_end_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that always knows of another page, or takes for ever, holds no worker for good."""
    calls = 0

    class Pages(BrokerApi):
        async def declared(self, url: str, kind: str, after: str) -> dict[str, Any]:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0 if url == "http://endless" else 60)
            return {kind: [], "next": f"{after}a"}

    class Leader:
        def time_to_write_s(self) -> float:
            return 1.0

    api, brokers = cast(KubeApi, Leader()), Pages(OperatorMetrics())
    with pytest.raises(BrokerApiError, match="more than 500 pages"):
        await copy_declarations(api, brokers, ["http://endless"], "http://c")
    assert calls == 500
    monkeypatch.setattr(declarations, "_LONGEST_S", 0.05)
    with pytest.raises(BrokerApiError, match=r"not copied in 0\.05 s"):
        await copy_declarations(api, brokers, ["http://slow"], "http://c")
