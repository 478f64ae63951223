"""What a new broker gets of the others."""

from typing import Any, cast

from mailboat_operator.broker_api import BrokerApi
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
