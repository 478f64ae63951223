"""Which topics and groups users have made: counted while they are there, and kept."""

import pytest

from mailboat.broker.quotas.made_names import Kind, MadeNames
from mailboat.disk.json_file import JsonFile
from mailboat.errors import DamagedStoreError
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.virtual_time import VirtualTime

OWN = "/store/mailboat"


class World:
    """What there is, and a clock."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.there: set[tuple[Kind, str]] = set()
        self.clock = VirtualTime()
        self.disk = SimulatedDisk()
        self.names = self.opened()

    def opened(self) -> MadeNames:
        """Open the names that the disk has."""
        names = MadeNames(
            self.disk,
            OWN,
            lambda kind, name: (kind, name) in self.there,
            clock=self.clock.monotonic,
        )
        names.load()
        return names

    def make(self, user: str, name: str, quota: int | None, kind: Kind = Kind.TOPIC) -> bool:
        """Make a topic if its user may."""
        may = self.names.may_make(user, kind, name, quota)
        if may:
            self.there.add((kind, name))
        return may


def test_a_user_makes_as_many_as_its_quota_allows() -> None:
    """Each user and each kind by itself; the same name is made once."""
    world = World()
    assert [world.make("u", name, 2) for name in "aabac"] == [True, True, True, True, False]
    assert world.make("v", "c", 1)
    assert world.make("u", "c", 1, Kind.GROUP)
    assert not world.make("u", "d", 1, Kind.GROUP)
    assert not world.make("w", "e", 0)
    assert world.make("u", "d", None)
    assert [world.names.count("u", kind) for kind in Kind] == [3, 1]


def test_what_is_gone_counts_no_more() -> None:
    """Nor does what was never made, after a while: its creation may be under way before."""
    world = World()
    assert world.names.may_make("u", Kind.TOPIC, "a", 1)
    assert not world.make("u", "b", 1)
    world.clock.advance(31)
    assert world.make("u", "b", 1)
    assert not world.make("u", "c", 1)
    world.clock.advance(31)
    assert not world.make("u", "c", 1)
    world.there.clear()
    # Whoever asks often does not have all of them looked at each time.
    assert not world.make("u", "c", 1)
    world.clock.advance(1)
    assert world.make("u", "c", 1)


def test_who_is_refused_often_costs_little() -> None:
    """The names that there are, however many, are looked at once a second."""
    world = World()
    looks = []
    world.names.exists = lambda kind, name: not looks.append(name)
    for number in range(100):
        assert world.names.may_make("u", Kind.TOPIC, f"t{number}", 100)
    assert looks == []
    world.clock.advance(31)
    for number in range(50):
        assert not world.names.may_make("u", Kind.TOPIC, f"other{number}", 100)
    assert len(looks) == 100


def test_what_is_not_bounded_is_not_kept_for_ever() -> None:
    """Names of topics that come and go do not gather."""
    world = World()
    for number in range(30_000):
        world.clock.advance(0.01)
        assert world.names.may_make("u", Kind.TOPIC, f"t{number}", None)
    assert len(world.names._users["u"][Kind.TOPIC].times) <= 10_000 + 3_100


def test_a_restart_forgets_nothing() -> None:
    """Whoever is gone is forgotten."""
    world = World()
    for user in ("u", "v"):
        assert world.make(user, f"of-{user}", 1)
        assert world.make(user, f"of-{user}", 1, Kind.GROUP)
    world.names.persist_blocking()
    world.names = world.opened()
    assert [world.names.count("u", kind) for kind in Kind] == [1, 1]
    assert not world.make("u", "another", 1)
    world.names.keep_users(lambda user: user != "u")
    world.names.persist_blocking()
    world.names = world.opened()
    assert [world.names.count("u", kind) for kind in Kind] == [0, 0]
    assert [world.names.count("v", kind) for kind in Kind] == [1, 1]


def test_an_unknown_format_is_not_taken() -> None:
    """A newer version may mean something else."""
    world = World()
    content = b'{"formatVersion": 2, "users": {}}'
    JsonFile(world.disk, f"{OWN}/madeByUsers.json").save(content)
    with pytest.raises(DamagedStoreError, match="madeByUsers"):
        world.opened()
