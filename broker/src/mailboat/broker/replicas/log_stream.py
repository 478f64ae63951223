"""The log as it goes to one follower: what is in memory at once, the rest by way of a thread.

Nothing is kept of what was sent: where the follower does not read, the rest stays in the files.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.pace import Pace
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
        pace: Pace,
        is_current: Callable[["LogStream"], bool],
        on_damage: Callable[[int], None],
        session: int,
        epoch: int,
        physical_offset: int,
    ) -> None:
        """Begin at a physical offset; `is_current` says whether the stream is still wanted.

        `on_damage` is called with where the log is damaged. A follower that was sent such records
        begins anew in front of them, so what comes first is checked.
        """
        self.link = link
        self._log = log
        self._run_reading = run_reading
        self._pace = pace
        self._is_current = is_current
        self._session = session
        self._epoch = epoch
        self._on_damage = on_damage
        self._is_reading = False
        self._checked_end = min(physical_offset + _PIECE_BYTES, log.end)
        self.physical_offset = physical_offset

    def pump(self) -> None:
        """Send what there is, as far as the other side reads, now and in the loop's next rounds."""
        if not self._is_current(self):
            return
        try:
            self._pump()
        except (OSError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: OSError | ValueError) -> None:
        if not isinstance(error, FileNotFoundError):
            self._on_damage(self.physical_offset)
        self.link.close(f"the log cannot be read at {self.physical_offset}: {error}")

    def _pump(self) -> None:
        for _ in range(_PIECES_A_PUMP):
            behind = self._log.end - self.physical_offset
            if self._is_reading or not self.link.has_room or behind <= 0:
                return
            if behind > _HOT_BYTES or self.physical_offset < self._checked_end:
                self._read_cold()
                return
            self._send(self._log.read(self.physical_offset, _PIECE_BYTES))
        asyncio.get_running_loop().call_soon(self.pump)

    def _read_cold(self) -> None:
        self._is_reading = True
        is_checked = self.physical_offset < self._checked_end
        read_job = self._log.read_good_job if is_checked else self._log.read_job
        job = read_job(self.physical_offset, _PIECE_BYTES)
        self._run_reading(job, self._cold_read)

    def _cold_read(self, piece: Any, error: BaseException | None) -> None:
        if not self._is_current(self):
            return
        if error is not None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self._fail(error)
        else:
            loop = asyncio.get_running_loop()
            wait_s = self._pace.wait_s(loop.time(), len(piece.records), self._log.end)
            self._send(piece)
            loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._is_reading = False
        self.pump()

    def _send(self, piece: LogPiece) -> None:
        at = self.physical_offset
        confirmed = self._log.confirmed_offset
        self.link.send(Data(self._session, self._epoch, at, piece.end, confirmed, piece.records))
        self.physical_offset = piece.end
