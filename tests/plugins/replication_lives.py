"""Lives of groups of replicas, as their tests have them."""

from promises import promised

from mailboat.testing.hand_simulator import HandGroup
from mailboat.testing.replica_simulator import Group

# Replicas and `min_in_sync`; the seed chooses.
_SHAPES = ((3, 2), (3, 2), (3, 1), (3, 2), (2, 1), (3, 2), (5, 2), (5, 3))
_SHAPES_BY_HAND = ((3, 2), (2, 2), (3, 2), (2, 1), (3, 2), (5, 2), (5, 3), (3, 3), (3, 1), (5, 4))


def live(seed: int, *, life_s: float, is_sync_flush: bool) -> Group:
    """Return a group whose lease a store keeps, after its life.

    Raises:
        PromiseBroken: an invariant does not hold; it says how the life is repeated.
    """
    size, min_in_sync = _SHAPES[seed % len(_SHAPES)]
    group = Group(seed, size=size, min_in_sync=min_in_sync, is_sync_flush=is_sync_flush)
    _go(group, life_s, f"live({seed}, life_s={life_s}, is_sync_flush={is_sync_flush})")
    return group


def live_by_hand(seed: int, *, life_s: float, is_sync_flush: bool) -> HandGroup:
    """Return a group in which a person says who leads, after its life.

    Raises:
        PromiseBroken: an invariant does not hold; it says how the life is repeated.
    """
    size, min_in_sync = _SHAPES_BY_HAND[seed % len(_SHAPES_BY_HAND)]
    group = HandGroup(seed, size=size, min_in_sync=min_in_sync, is_sync_flush=is_sync_flush)
    _go(group, life_s, f"live_by_hand({seed}, life_s={life_s}, is_sync_flush={is_sync_flush})")
    return group


def _go(group: Group, life_s: float, call: str) -> None:
    with promised(f"all invariants hold in replication_lives.{call}"):
        group.live(life_s)
        group.heal()
