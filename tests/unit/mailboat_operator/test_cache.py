"""Tests of the cache of the latest known objects."""

from typing import Any

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.cache import ObjectCache
from mailboat_operator.kinds import ResourceKey


def _pod(version: int, uid: str = "u1", name: str = "orders-g0-0", **labels: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {"mailboat.dev/broker": "orders", **labels},
            "managedFields": [{"manager": "x"}],
        },
    }


def test_an_older_state_is_refused() -> None:
    """States may arrive in any order from any source: the newest stays."""
    cache = ObjectCache()
    assert cache.update(_pod(9))
    assert not cache.update(_pod(9))
    assert not cache.update(_pod(8))
    # Numbers, not texts, are compared: "10" is newer than "9".
    assert cache.update(_pod(10))
    kept = cache.get("Pod", "shop", "orders-g0-0")
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == "10"
    assert "managedFields" not in kept["metadata"]


def test_the_dead_do_not_come_back() -> None:
    """A late state of an object that was seen deleted is refused, its successor is not."""
    cache = ObjectCache()
    cache.update(_pod(5))
    assert cache.remove(_pod(7))
    assert not cache.update(_pod(6))
    assert cache.get("Pod", "shop", "orders-g0-0") is None
    assert cache.update(_pod(8, uid="u2"))


def test_what_only_left_the_watch_comes_back() -> None:
    """A watch with a selector says DELETED of what lost its label; a later state is let in.

    The event of the loss may come late, after the state with the label put back: that one stays.
    """
    cache = ObjectCache()
    cache.update(_pod(5))
    assert cache.remove(_pod(7))
    assert cache.update(_pod(8))
    assert not cache.remove(_pod(7))
    kept = cache.get("Pod", "shop", "orders-g0-0")
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == "8"


def test_what_a_list_lacks_does_not_come_back_from_before_it() -> None:
    """The end lies somewhere before the list: a state from before the list is of the dead."""
    cache = ObjectCache()
    cache.update(_pod(5))
    cache.replace("Pod", None, [], 20)
    assert not cache.update(_pod(19))
    assert cache.update(_pod(21))


def test_a_late_deletion_spares_the_successor() -> None:
    """The deletion of one uid does not remove another object of the same name."""
    cache = ObjectCache()
    cache.update(_pod(5))
    cache.update(_pod(8, uid="u2"))
    assert not cache.remove(_pod(7, uid="u1"))
    kept = cache.get("Pod", "shop", "orders-g0-0")
    assert kept is not None
    assert kept["metadata"]["uid"] == "u2"


def test_a_list_shows_what_was_deleted_unseen() -> None:
    """What a list lacks is gone, but for what is newer than the list or outside of it."""
    cache = ObjectCache()
    other = _pod(3, uid="o", name="other")
    other["metadata"]["namespace"] = "bank"
    for pod in (_pod(5, "a", "a"), _pod(6, "b", "b"), _pod(30, "c", "c"), other):
        cache.update(pod)
    changed = cache.replace("Pod", "shop", [_pod(6, "b", "b"), _pod(7, "d", "d")], 20)
    assert sorted(pod["metadata"]["name"] for pod in changed) == ["a", "d"]
    names = sorted(pod["metadata"]["name"] for pod in cache.all_of("Pod"))
    assert names == ["b", "c", "d", "other"]


def test_children_by_owner() -> None:
    """Children are found by their owner's label, follow a change of it, and leave when deleted."""
    cache = ObjectCache()
    orders, bills = (ResourceKey("Broker", "shop", name) for name in ("orders", "bills"))
    cache.update(_pod(1))
    assert list(cache.owned_by("Pod", orders)) == ["orders-g0-0"]
    assert cache.owned_by("Pod", ResourceKey("Broker", "bank", "orders")) == {}
    cache.update(_pod(2, **{"mailboat.dev/broker": "bills"}))
    assert cache.owned_by("Pod", orders) == {}
    assert list(cache.owned_by("Pod", bills)) == ["orders-g0-0"]
    cache.remove(_pod(3, **{"mailboat.dev/broker": "bills"}))
    assert cache.owned_by("Pod", bills) == {}


def test_deletions_are_forgotten_in_the_end() -> None:
    """The memory of deletions is bounded in time, so that a long life does not fill it."""
    clock = VirtualTime()
    cache = ObjectCache(monotonic=clock.monotonic)
    cache.remove(_pod(1, uid="old"))
    clock.advance(1000)
    cache.remove(_pod(2, uid="new"))
    assert cache.update(_pod(1, uid="old", name="x"))
    assert not cache.update(_pod(2, uid="new", name="y"))
