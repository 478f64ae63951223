"""Links whose frames wait for a disk: beyond a measure nothing more is read of them."""

from typing import Final

from mailboat.broker.replicas.link import Link
from mailboat.replication.frames import Ask, Data, Frame

# Of the log, that has come and waits in memory.
_MOST_UNWRITTEN_BYTES: Final = 8 << 20
# Actions; each frame is a few.
_MOST_ACTIONS: Final = 4096
# A promise is written by itself, and all that comes behind it waits. Whoever wants to lead asks for
# few.
_MOST_ACTIONS_TO_ASK: Final = 16


class HeldLinks:
    """Links of one replica that are not read while it is busy."""

    def __init__(self) -> None:
        """Hold nobody."""
        self._unwritten_bytes = 0
        self._links: set[Link] = set()

    def note(self, link: Link, frame: Frame, actions: int) -> None:
        """Note a frame that waits; hold its link where that is much, or so many actions wait."""
        if isinstance(frame, Data):
            assert isinstance(frame.records, bytes)
            self._unwritten_bytes += len(frame.records)
        most = _MOST_ACTIONS_TO_ASK if isinstance(frame, Ask) else _MOST_ACTIONS
        if self._unwritten_bytes > _MOST_UNWRITTEN_BYTES or actions > most:
            self._links.add(link)
            link.hold()

    def forget(self, link: Link) -> None:
        """Forget a link that has ended."""
        self._links.discard(link)

    def release(self) -> None:
        """Read all links again: nothing waits any more."""
        self._unwritten_bytes = 0
        while self._links:
            self._links.pop().go_on()
