"""RocketMQ's own slaves of this broker: they get the confirmed log, byte by byte.

Nobody of them counts: they say neither who they are nor what is flushed, and cannot take anything
back. So they are sent only what every replica in the in-sync set has, which stays in the log
whoever leads next. Nor do they look at what they get: a record is checked here, as a whole, before
its first byte is sent. `mailboat.replication.java_ha` has the bytes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from mailboat.broker.replicas.link import Flow
from mailboat.broker.replicas.pace import Pace
from mailboat.errors import RemoteProtocolError
from mailboat.replication.java_ha import (
    FRAME_HEAD,
    HEARTBEAT_S,
    SILENT_S,
    ReportDecoder,
)
from mailboat.store.message_inner import BlockingRunner
from mailboat.store.replica_log import LogPiece, ReplicaLog

_log: Final = logging.getLogger(__name__)

# A slave takes 4 MiB at most, with the head.
_FRAME_BYTES: Final = 256 << 10
# What lies so near the end of the log has just been written, and is in memory.
_HOT_BYTES: Final = 8 << 20
# In one go; what follows waits for the loop's next round.
_FRAMES_A_PUMP: Final = 4
# Beyond it nothing more is sent before the slave has read: the rest stays in files.
_HIGH_WATER_BYTES: Final = 1 << 20
_SLAVES_MAX: Final = 16
_TICK_S: Final = 1.0
# Nobody leads for a moment after a start; a slave that is sent nothing for 20 s connects anew.
_NO_LEADER_S: Final = 10.0


class JavaSlaves:
    """All of RocketMQ's slaves that are connected here."""

    def __init__(
        self,
        log: ReplicaLog,
        segment_bytes: int,
        run_reading: BlockingRunner,
        pace: Pace,
        is_leading: Callable[[], bool],
    ) -> None:
        """Serve a log while this broker leads its group."""
        self.log = log
        self.segment_bytes = segment_bytes
        self.run_reading = run_reading
        self.pace = pace
        self.is_leading = is_leading
        self.on_damage: Callable[[int], None] = lambda _physical_offset: None
        """Called with where the log is damaged."""

        self._slaves: set[JavaSlave] = set()
        self._is_pump_due = False
        self._complaints: dict[str, str] = {}

    @property
    def slaves(self) -> list["JavaSlave"]:
        """Those that are connected."""
        return list(self._slaves)

    def make(self) -> "JavaSlave":
        """Prepare a connection."""
        return JavaSlave(self)

    def confirmed(self) -> None:
        """Send what has been confirmed, at the end of this round of the loop."""
        if self._slaves and not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def close(self) -> None:
        """End all connections."""
        for slave in self.slaves:
            slave.close("this broker ends")

    def begin(self, slave: "JavaSlave") -> bool:
        """Take note of a slave; tell whether there is room for it."""
        if len(self._slaves) >= _SLAVES_MAX:
            return False
        self._slaves.add(slave)
        return True

    def end(self, slave: "JavaSlave") -> None:
        """Forget a slave."""
        self._slaves.discard(slave)

    def complain(self, host: str, text: str) -> None:
        """Say why a connection ends; slaves come again every 5 s, and it is said once."""
        is_news = self._complaints.get(host) != text
        if is_news:
            if len(self._complaints) >= _SLAVES_MAX:
                self._complaints.clear()
            self._complaints[host] = text
        level = logging.WARNING if is_news else logging.DEBUG
        _log.log(level, "slave of RocketMQ closed host=%s: %s", host, text)

    def forgive(self, host: str) -> None:
        """Complain again the next time."""
        self._complaints.pop(host, None)

    def _pump(self) -> None:
        self._is_pump_due = False
        for slave in self.slaves:
            slave.pump()


class JavaSlave(asyncio.Protocol):
    """A connection of one of RocketMQ's slaves."""

    def __init__(self, slaves: JavaSlaves) -> None:
        """Prepare a connection; whoever has its transport opens it."""
        self._slaves = slaves
        self._log = slaves.log
        self._reports = ReportDecoder()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._made_s = self._heard_s = self._sent_s = self._loop.time()
        self._first_report: int | None = None
        # Below it the log was checked; a record or a filler begins there.
        self._checked_end = -1
        self._is_reading = False
        self._has_room = True
        self.flow = Flow(self._made_s)
        self.physical_offset = -1
        """Where the next byte comes from that it is sent, -1 before the first."""

        self.acked_offset = 0
        """Where its log ended when it reported last."""

        self.host = self.address = "unknown"

    @property
    def unsent_bytes(self) -> int:
        """How much waits in memory for the slave to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self, reason: str) -> None:
        """End the connection and say why."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._slaves.complain(self.host, reason)
            transport.abort()

    def pump(self) -> None:
        """Send what is confirmed, as far as the slave reads."""
        for _ in range(_FRAMES_A_PUMP):
            size = self._next_bytes()
            if not size:
                return
            if self._log.confirmed_offset - self.physical_offset > _HOT_BYTES:
                self._read_cold(size)
                return
            try:
                piece = self._read_hot(size)
            except (OSError, ValueError) as error:
                self._fail(error)
                return
            if not self._send(piece):
                return
        self._loop.call_soon(self.pump)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if peername is not None:
            self.host, self.address = peername[0], f"{peername[0]}:{peername[1]}"
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if not self._slaves.begin(self):
            self.close(f"there are {_SLAVES_MAX} of them already")
            return
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def data_received(self, data: bytes) -> None:
        """Take what it reports; called by the event loop."""
        self._heard_s = self._loop.time()
        try:
            reported = self._reports.feed(data)
        except RemoteProtocolError as error:
            self.close(str(error))
            return
        if reported is None:
            return
        if self.physical_offset < 0:
            self._first_report = reported
            self._begin()
        elif reported > self.physical_offset:
            self.close(
                f"it has the log up to {reported}, and was sent it up to {self.physical_offset}: "
                "it follows another master as well"
            )
        else:
            self.acked_offset = reported

    def pause_writing(self) -> None:
        """Note that the slave does not read; called by the event loop."""
        self._has_room = False

    def resume_writing(self) -> None:
        """Go on; called by the event loop."""
        self._has_room = True
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called by the event loop."""
        if self._timer is not None:
            self._timer.cancel()
        self._slaves.end(self)
        if self.physical_offset >= 0:
            _log.info("slave of RocketMQ gone address=%s: %s", self.address, exc or "it closed")

    # -- sending --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin to send at the place that the slave has asked for."""
        at, log = self._first_report, self._log
        if at is None or self._is_reading or not self._slaves.is_leading():
            return
        self.acked_offset = at
        if at == 0:
            # Of a segment: a slave without a log writes the first byte at a segment's beginning.
            at = log.start
        if not log.start <= at <= log.end:
            self.close(
                f"its log ends at {at}, and the log here goes from {log.start} to {log.end}: it "
                "was the slave of another master, or away too long, and needs an empty store"
            )
            return
        self._is_reading = True
        if at % self._slaves.segment_bytes == 0:
            self._found_start(at, at, None)
            return
        try:
            job = log.record_start_job(at)
        except ValueError as error:
            self._fail(error)
            return
        self._slaves.run_reading(job, lambda start, error: self._found_start(at, start, error))

    def _found_start(self, at: int, start: Any, error: BaseException | None) -> None:
        """Send from `at` on, which lies in the record that begins at `start`."""
        if error is not None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self.close(f"where it goes on, at {at}, no record is found: {error}")
            return
        self.physical_offset, self._checked_end = at, start
        self._is_reading = False
        _log.info("slave of RocketMQ follows address=%s from=%d", self.address, at)
        self.pump()

    def _next_bytes(self) -> int:
        """Return how much may be sent now: of one segment, and confirmed."""
        at = self.physical_offset
        if at < 0 or self._is_reading or not self._has_room or not self._slaves.is_leading():
            return 0
        segment_bytes = self._slaves.segment_bytes
        behind = self._log.confirmed_offset - at
        return max(min(behind, segment_bytes - at % segment_bytes, _FRAME_BYTES), 0)

    def _read_hot(self, size: int) -> LogPiece:
        at, checked_end, log = self.physical_offset, self._checked_end, self._log
        if at < checked_end:
            return LogPiece(log.read_bytes(at, min(size, checked_end - at)), checked_end)
        return log.read_good(checked_end, _FRAME_BYTES, log.confirmed_offset)

    def _read_cold(self, size: int) -> None:
        at, checked_end, log = self.physical_offset, self._checked_end, self._log
        try:
            if at < checked_end:
                read = log.read_bytes_job(at, min(size, checked_end - at))
                job: Callable[[], LogPiece] = lambda: LogPiece(read(), checked_end)  # noqa: E731
            else:
                job = log.read_good_job(checked_end, _FRAME_BYTES, log.confirmed_offset)
        except ValueError as error:
            self._fail(error)
            return
        self._is_reading = True
        self._slaves.run_reading(job, self._cold_read)

    def _cold_read(self, piece: Any, error: BaseException | None) -> None:
        if error is not None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self._fail(error)
        elif self._send(piece):
            wait_s = self._slaves.pace.wait_s(self._loop.time(), len(piece.records), self._log.end)
            self._loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._is_reading = False
        self.pump()

    def _send(self, piece: LogPiece) -> bool:
        """Send bytes of the log that are checked up to the end of `piece`; tell whether the
        connection goes on.

        What does not fit a frame, or is behind the head of a filler, is read once more.
        """
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            return False
        at = self.physical_offset
        data = piece.records
        if at >= self._checked_end:
            data = data[at - self._checked_end :][:_FRAME_BYTES]
        self._checked_end = piece.end
        self.physical_offset = at + len(data)
        self.flow.size_bytes += len(data)
        if data:
            self._sent_s = self._loop.time()
            transport.writelines([FRAME_HEAD.pack(at, len(data)), data])
        return True

    def _fail(self, error: Exception) -> None:
        if self._checked_end >= 0 and not isinstance(error, FileNotFoundError):
            self._slaves.on_damage(self._checked_end)
        self.close(
            f"the log here is damaged or gone at {self.physical_offset}, and no slave of RocketMQ "
            f"gets over that: {error}"
        )

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        now_s = self._loop.time()
        self.flow.sample(now_s)
        if now_s - self._heard_s > SILENT_S:
            self.close(f"it reported nothing for {SILENT_S:g} s")
        elif self.physical_offset < 0:
            self._begin()
            if self.physical_offset < 0 and now_s - self._made_s > _NO_LEADER_S:
                self._give_up_waiting()
        elif self.physical_offset >= 0 and not self._slaves.is_leading():
            self.close("this broker does not lead its group")
        elif self._has_room and now_s - self._sent_s >= HEARTBEAT_S:
            self._sent_s = now_s
            assert self._transport is not None
            self._transport.write(FRAME_HEAD.pack(self.physical_offset, 0))
            self._slaves.forgive(self.host)

    def _give_up_waiting(self) -> None:
        if self._first_report is not None and not self._is_reading:
            self.close("this broker does not lead its group")
