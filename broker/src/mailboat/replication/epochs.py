"""Where the epochs of a log begin, and how far two logs are the same."""

from collections.abc import Sequence
from typing import Final, NamedTuple

# More than any group has replicas.
_ORDINALS: Final = 8


class EpochStart(NamedTuple):
    """One epoch and the physical offset of its first byte."""

    epoch: int
    start: int


Epochs = tuple[EpochStart, ...]
"""In rising order. An entry says: up to its end, this log is a prefix of that leader's."""


def consistent_end(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int | None:
    """Return the physical offset up to which two logs are certainly the same.

    It is where the newest epoch that began at the same place in both ends in one of them. None
    where there is none: an empty log is the same as any up to 0.
    """
    if my_end == 0 or their_end == 0:
        return 0
    common = set(mine) & set(theirs)
    if not common:
        return None
    newest = max(common)
    return min(_end_of(mine, newest, my_end), _end_of(theirs, newest, their_end))


def epoch_after(seen: int, ordinal: int) -> int:
    """Return the first epoch above `seen` that belongs to a replica of a group led by hand."""
    return (seen // _ORDINALS + 1) * _ORDINALS + ordinal


def leader_of(epoch: int) -> int:
    """Return the ordinal of the replica to which an epoch belongs."""
    return epoch % _ORDINALS


def _end_of(epochs: Sequence[EpochStart], entry: EpochStart, log_end: int) -> int:
    """Return where an epoch ends in a log: where the next one begins, or with the log."""
    following = [other.start for other in epochs if other.epoch > entry.epoch]
    return min([*following, log_end])
