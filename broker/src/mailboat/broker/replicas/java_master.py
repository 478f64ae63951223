"""Following a master of RocketMQ: its log, byte by byte, until a person lets this broker lead.

Such a master counts no slaves by name, has no epochs, and says nothing of what is confirmed: what
it has sent is taken as confirmed. Nor does it say on its HA connection what it is, how large its
segments are, or that the log here is not a prefix of its own; so it is asked where clients ask, and
the end of both logs is compared before anything is written.

`mailboat.replication.java_ha` has the bytes of the HA connection.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from mailboat.broker.supervisor import TaskProgress
from mailboat.config.properties import parse_properties
from mailboat.errors import BrokerError, ConfigError, MailboatError, RemoteProtocolError
from mailboat.protocol.bodies import decode_kv_table
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.replication.java_ha import (
    HEARTBEAT_S,
    SILENT_S,
    FrameDecoder,
    Overlap,
    RecordTail,
)
from mailboat.store.message_store import MessageStore

_log: Final = logging.getLogger(__name__)

_READ_BYTES: Final = 256 << 10
_CONNECT_TIMEOUT_S: Final = 3.0
_ASK_TIMEOUT_S: Final = 5.0
_CHECK_S: Final = 10.0
_AGAIN_S: Final = 1.0
# Of the end of both logs. Records of two masters that wrote on by themselves differ in their times.
_COMPARED_BYTES: Final = 1 << 20
# Every broker of RocketMQ has this setting, and no broker of ours.
_THEIR_KEY: Final = "haTransferBatchSize"


class _Standing(NamedTuple):
    """What a master says of its log: where it begins and ends, and the size of its segments."""

    start: int
    end: int
    segment_bytes: int


class DivergedError(Exception):
    """The log here and that of the master cannot be one; a person must decide."""


class JavaMaster:
    """The one master of RocketMQ that this broker follows, once it is known to be one.

    `on_followed` is called with the physical offset behind what was written, `refuses` says why
    it must not be followed, empty if it may.
    """

    def __init__(
        self,
        store: MessageStore,
        segment_bytes: int,
        refuses: Callable[[], str],
        on_followed: Callable[[int], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Follow with an open store; `on_lost` gets an address that is not followed any more."""
        self._store = store
        self._segment_bytes = segment_bytes
        self._refuses = refuses
        self._on_followed = on_followed
        self._on_lost = on_lost
        self._client = RemotingClient(Dispatcher(), name="master of RocketMQ")
        self._client_addresses: dict[str, str] = {}
        self._found = asyncio.Event()
        self._address = ""
        # The one that is followed, and those that wait until it is not any more.
        self._candidates: list[str] = []
        self._writer: asyncio.StreamWriter | None = None
        self._tail: RecordTail | None = None
        self._reported = -1
        self._reported_s = 0.0
        self.problem = ""
        """Why it is not followed now, empty while it is or there is none."""

    @property
    def is_followed(self) -> bool:
        """Whether the master sends its log."""
        return self._tail is not None

    def note_client_address(self, address: str, client_address: str) -> None:
        """Take note of where the broker that replicates at an address serves clients."""
        self._client_addresses[address] = client_address

    def follow(self, address: str) -> None:
        """Follow who is at an address, and does not speak as replicas do."""
        self._candidates.append(address)
        if len(self._candidates) == 1:
            self._address = address
            self._found.set()

    def flushed(self) -> None:
        """Report what has become durable."""
        if self._store.is_sync_flush and self._tail is not None:
            self._report()

    async def close(self) -> None:
        """End the connections, once the task has ended."""
        await self._client.close()

    async def run(self, progress: TaskProgress) -> None:
        """Follow whenever there is a master to follow; runs for ever."""
        while True:
            progress.beat(_AGAIN_S * 10)
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await self._found.wait()
            except TimeoutError:
                continue
            self._found.clear()
            try:
                await self._follow(progress)
            except (OSError, ValueError, MailboatError, EOFError, DivergedError) as error:
                self._note(str(error) or "it did not answer in time")
            finally:
                self._end_connection()
            progress.beat()
            await asyncio.sleep(_AGAIN_S)
            # It may be one of ours by now, or may have been one all the time that was busy.
            for address in self._candidates:
                self._on_lost(address)
            self._candidates.clear()

    # -- one connection -------------------------------------------------------------------------

    async def _follow(self, progress: TaskProgress) -> None:
        """Follow until the connection ends; raises the reason."""
        progress.beat(3 * _ASK_TIMEOUT_S + SILENT_S)
        if refusal := self._refuses():
            raise DivergedError(refusal)
        standing = await self._ask(with_config=True)
        begin = self._first_report(standing)
        overlap = await self._end_of_log(begin)
        host, _, port = self._address.rpartition(":")
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, self._writer = await asyncio.open_connection(host.strip("[]"), int(port))
        self._writer.write(begin.to_bytes(8, "big"))
        frames = FrameDecoder()
        loop = asyncio.get_running_loop()
        heard_s = checked_s = loop.time()
        expected = begin
        while True:
            progress.beat(SILENT_S + _ASK_TIMEOUT_S)
            data = await _read(reader)
            if self._refuses():
                return  # A person let this broker lead meanwhile.
            now_s = loop.time()
            if data:
                heard_s = now_s
            elif now_s - heard_s > SILENT_S:
                raise OSError(f"it sent nothing for {SILENT_S:g} s")
            for physical_offset, records in frames.feed(data):
                if physical_offset != expected:
                    raise RemoteProtocolError(f"it sends {physical_offset} and not {expected}")
                expected += len(records)
                records_behind = self._compare(overlap, records)
                if overlap.is_over:
                    self._take(records_behind, begin)
            if now_s - self._reported_s >= HEARTBEAT_S:
                self._report()
            if now_s - checked_s >= _CHECK_S:
                checked_s = now_s
                self._check(await self._ask(with_config=False))

    def _take(self, data: bytes, begin: int) -> None:
        """Write what is whole of bytes that follow those before."""
        replica = self._store.replica
        if self._tail is None:
            self._tail = RecordTail(replica.end, self._segment_bytes)
            self.problem = ""
            _log.info("following master of RocketMQ address=%s from=%d", self._address, replica.end)
            if begin > replica.end:
                # It was asked for the log from its second byte on: from 0 it sends the last
                # segment only. The first byte is the highest of a size, which is below 16 MiB.
                assert begin == 1
                data = b"\0" + data
        before = replica.end
        for piece in self._tail.feed(data):
            replica.follow(piece, replica.end)
        if replica.end > before:
            self._on_followed(replica.end)
            if not self._store.is_sync_flush:
                self._report()

    def _report(self) -> None:
        """Say how far the log is written, or durable where that is promised."""
        tail, writer = self._tail, self._writer
        if tail is None or writer is None:
            return
        end = self._store.replica.end
        if self._store.is_sync_flush:
            end = min(end, self._store.flushed_offset)
        self._reported_s = asyncio.get_running_loop().time()
        writer.write(min(end, tail.received_end).to_bytes(8, "big"))

    def _end_connection(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = self._tail = None

    # -- whether the logs are one ---------------------------------------------------------------

    async def _ask(self, *, with_config: bool) -> _Standing:
        """Ask where clients ask."""
        address = self._client_addresses.get(self._address) or _client_address(self._address)
        segment_bytes = self._segment_bytes
        if with_config:
            answer = await self._request(address, RequestCode.GET_BROKER_CONFIG)
            segment_bytes = _segment_bytes(answer)
        table = decode_kv_table(await self._request(address, RequestCode.GET_BROKER_RUNTIME_INFO))
        try:
            start, end = (int(table[f"commitLog{name}Offset"]) for name in ("Min", "Max"))
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"it does not say where its log ends: {error}") from error
        return _Standing(start, end, segment_bytes)

    async def _request(self, address: str, code: int) -> bytes:
        request = RemotingCommand.request(code)
        answer = await self._client.request(address, request, _ASK_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "")
        return answer.body

    def _first_report(self, standing: _Standing) -> int:
        """Return from where to ask for the log."""
        if standing.segment_bytes != self._segment_bytes:
            raise DivergedError(
                f"its mappedFileSizeCommitLog is {standing.segment_bytes}, that of this broker "
                f"{self._segment_bytes}: they must be equal"
            )
        self._check(standing)
        replica = self._store.replica
        if replica.end:
            segment_start = (replica.end - 1) // self._segment_bytes * self._segment_bytes
            return max(segment_start, replica.end - _COMPARED_BYTES, replica.start) or 1
        if not standing.end:
            raise OSError("it has no message yet")
        if standing.start:
            replica.begin_at(standing.start)
        return standing.start or 1

    def _check(self, standing: _Standing) -> None:
        """Refuse a log that cannot go on with this master: it would send nothing and not say why.

        Raises:
            DivergedError: it is beyond the end of the master's, or before its beginning.
        """
        end = self._store.replica.end
        if end > standing.end:
            raise DivergedError(
                f"the log here ends at {end}, that of the master at {standing.end}: they have "
                "diverged; move the store's folder aside and start again, for a full copy"
            )
        if 0 < end < standing.start:
            raise DivergedError(
                f"the log here ends at {end}, that of the master begins at {standing.start}: move "
                "the store's folder aside and start again, for a full copy"
            )

    async def _end_of_log(self, begin: int) -> Overlap:
        """Read what the log has from a physical offset on.

        Raises:
            OSError: it cannot be read now.
        """
        replica = self._store.replica
        size = max(replica.end - begin, 0)
        job = replica.read_bytes_job(begin, size) if size else bytes
        segment_end = begin - begin % self._segment_bytes + self._segment_bytes
        return Overlap(await asyncio.to_thread(job), begin, segment_end)

    def _compare(self, overlap: Overlap, data: bytes) -> bytes:
        """Return what the log does not have yet.

        Raises:
            DivergedError: the master has something else where the log here ends.
        """
        try:
            return overlap.take(data)
        except ValueError as error:
            raise DivergedError(
                f"{error}: they have diverged; move the store's folder aside and start again, for "
                "a full copy"
            ) from error

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("not following master of RocketMQ at %s: %s", self._address, problem)
        self.problem = problem


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return what has come, nothing after some seconds without anything."""
    try:
        async with asyncio.timeout(HEARTBEAT_S / 2):
            data = await reader.read(_READ_BYTES)
    except TimeoutError:
        return b""
    if not data:
        raise EOFError("it closed the connection")
    return data


def _client_address(address: str) -> str:
    """Return where a broker most probably serves clients, by where it replicates."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 1}"


def _segment_bytes(config: bytes) -> int:
    """Read the size of a segment from a configuration.

    Raises:
        RemoteProtocolError: it is not that of a broker of RocketMQ.
    """
    try:
        found = {entry.key: entry.value for entry in parse_properties(config.decode())}
        if _THEIR_KEY not in found:
            raise RemoteProtocolError("it is no broker of RocketMQ, and does not speak as ours do")
        return int(found["mappedFileSizeCommitLog"])
    except (ConfigError, UnicodeDecodeError, KeyError, ValueError) as error:
        raise RemoteProtocolError(f"its configuration cannot be read: {error}") from error
