"""Which followers are sent the log, and from where."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.log_stream import LogStream
from mailboat.broker.replicas.pace import Pace
from mailboat.store.message_inner import BlockingRunner
from mailboat.store.replica_log import ReplicaLog

_log: Final = logging.getLogger(__name__)


class LogStreams:
    """One `LogStream` for each follower, by its ordinal."""

    def __init__(
        self,
        log: ReplicaLog,
        run_reading: BlockingRunner,
        pace: Pace,
        on_damage: Callable[[int], None],
    ) -> None:
        """Send nobody anything; the arguments are those of each stream."""
        self._log = log
        self._run_reading = run_reading
        self._pace = pace
        self._on_damage = on_damage
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, LogStream] = {}

    def begin(
        self, ordinal: int, link: Link, session: int, epoch: int, physical_offset: int
    ) -> None:
        """Send a follower the log from a physical offset on, in place of what it was sent."""
        stream = LogStream(
            link,
            self._log,
            self._run_reading,
            self._pace,
            self._is_current,
            self._on_damage,
            session,
            epoch,
            physical_offset,
        )
        self._streams[ordinal] = stream
        _log.info("followed by replica=%d epoch=%d from=%d", ordinal, epoch, physical_offset)
        self._loop.call_soon(stream.pump)

    def pump(self) -> None:
        """Send everybody what was written."""
        for stream in list(self._streams.values()):
            stream.pump()

    def roomy(self, link: Link) -> None:
        """Send on what waited for a follower to read."""
        for stream in list(self._streams.values()):
            if stream.link is link:
                stream.pump()

    def lost(self, link: Link) -> None:
        """End the streams to the other side of a link."""
        self._streams = {
            ordinal: stream for ordinal, stream in self._streams.items() if stream.link is not link
        }

    def sent_end(self, ordinal: int) -> int | None:
        """Return the physical offset up to which a follower was sent the log, None without one."""
        stream = self._streams.get(ordinal)
        return None if stream is None else stream.physical_offset

    def clear(self) -> None:
        """End all streams."""
        self._streams.clear()

    def _is_current(self, stream: LogStream) -> bool:
        return any(stream is current for current in self._streams.values())
