"""The log as it goes to one follower: what is in memory at once, the rest by way of a thread.

Nothing is kept of what was sent: where the follower does not read, the rest stays in the files.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from mailboat.broker.replicas.link import Link
from mailboat.replication.frames import Data
from mailboat.store.message_inner import BlockingRunner
from mailboat.store.replica_log import LogPiece, ReplicaLog

_PIECE_BYTES: Final = 1 << 20
# What lies so near the end of the log has just been written, and is in memory.
_HOT_BYTES: Final = 8 << 20
# In one go; what follows waits for the loop's next round.
_PIECES_A_PUMP: Final = 4


class LogStream:
    """Sends a follower `Data` from a physical offset on, until it is replaced."""

    def __init__(
        self,
        link: Link,
        log: ReplicaLog,
        run_reading: BlockingRunner,
        is_current: Callable[["LogStream"], bool],
        session: int,
        epoch: int,
        physical_offset: int,
    ) -> None:
        """Begin at a physical offset; `is_current` says whether the stream is still wanted."""
        self.link = link
        self._log = log
        self._run_reading = run_reading
        self._is_current = is_current
        self._session = session
        self._epoch = epoch
        self._is_reading = False
        self.physical_offset = physical_offset

    def pump(self) -> None:
        """Send what there is, as far as the other side reads, now and in the loop's next rounds."""
        if not self._is_current(self):
            return
        try:
            self._pump()
        except (OSError, ValueError) as error:
            self.link.close(f"the log cannot be read at {self.physical_offset}: {error}")

    def _pump(self) -> None:
        for _ in range(_PIECES_A_PUMP):
            behind = self._log.end - self.physical_offset
            if self._is_reading or not self.link.has_room or behind <= 0:
                return
            if behind > _HOT_BYTES:
                self._read_cold()
                return
            self._send(self._log.read(self.physical_offset, _PIECE_BYTES))
        asyncio.get_running_loop().call_soon(self.pump)

    def _read_cold(self) -> None:
        self._is_reading = True
        job = self._log.read_job(self.physical_offset, _PIECE_BYTES)
        self._run_reading(job, self._cold_read)

    def _cold_read(self, piece: Any, error: BaseException | None) -> None:
        self._is_reading = False
        if not self._is_current(self):
            return
        if error is not None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self.link.close(f"the log cannot be read at {self.physical_offset}: {error}")
        else:
            self._send(piece)
            self.pump()

    def _send(self, piece: LogPiece) -> None:
        at = self.physical_offset
        self.link.send(Data(self._session, self._epoch, at, piece.end, piece.records))
        self.physical_offset = piece.end
