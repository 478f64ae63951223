"""Tests of what is said of a volume whose larger size the API server does not take."""

from dataclasses import replace

from volume_world import World

from mailboat_operator.planner.snapshot import BrokerSnapshot

_WORDS = "patch .../data-orders-g0-0: exceeded quota: storage (HTTP 403)"
_SAID = "data-orders-g0-0: the API server does not take the change from 10Gi to 12Gi: "


class _Refusing(World):
    """Every size is refused; the operator keeps the words of the last refusal."""

    def __init__(self) -> None:
        super().__init__()
        self.words: str | None = None
        self.spec["storage"]["size"] = "12Gi"
        self.refuses.add("data-orders-g0-0")

    def snapshot(self) -> BrokerSnapshot:
        """What the operator sees, with the words where there are some."""
        refused = {"data-orders-g0-0": self.words} if self.words else {}
        return replace(super().snapshot(), refused_sizes=refused)


def test_the_servers_words_are_said_at_once() -> None:
    """A refusal with words needs no minute of patience, and stays what is said in the pauses."""
    world = _Refusing()
    assert world.turn().storage_ready.reason == "Resizing"
    world.words = _WORDS
    for _ in range(30):
        found = world.turn(after_s=5).storage_ready
        assert (found.holds, found.reason, found.message) == (
            False,
            "ResizeRefused",
            _SAID + _WORDS,
        )
    # Once when it was decided, once when its refusal was known; the next one is after 5 minutes.
    assert len(world.resizes) == 2


def test_a_new_leader_says_what_its_predecessor_was_told() -> None:
    """The words are kept in memory; until they are known anew the status has them."""
    world = _Refusing()
    world.turn()
    world.words = _WORDS
    world.turn(after_s=5)
    world.words = None
    assert world.turn(after_s=90).storage_ready.message == _SAID + _WORDS


def test_without_words_there_is_patience() -> None:
    """A size that nobody refused, and that does not land, is told after a minute."""
    world = _Refusing()
    world.turn()
    assert world.turn(after_s=55).storage_ready.reason == "Resizing"
    found = world.turn(after_s=10).storage_ready
    assert found.reason == "ResizeRefused"
    assert found.message == _SAID + "it has not said why"
