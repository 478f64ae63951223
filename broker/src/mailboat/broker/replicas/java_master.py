"""Following a master of RocketMQ: its log, byte by byte, until a person lets this broker lead.

Such a master counts no slaves by name, has no epochs, and says nothing of what is confirmed: what
it has sent is taken as confirmed. Nor does it say on its HA connection what it is, how large its
segments are, or that the log here is not a prefix of its own; so it is asked where clients ask, and
the end of both logs is compared before anything is written.

`mailboat.replication.java_ha` has the bytes of the HA connection.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from mailboat.broker.replicas.link import Flow
from mailboat.broker.supervisor import TaskProgress
from mailboat.config import MessageStoreConfig
from mailboat.config.properties import parse_properties
from mailboat.errors import BrokerError, ConfigError, MailboatError, RemoteProtocolError
from mailboat.protocol.bodies import decode_kv_table
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.replication.java_ha import (
    HEARTBEAT_S,
    MOST_OFFSET,
    SILENT_S,
    FrameDecoder,
    Overlap,
    RecordTail,
)
from mailboat.security.client_security import OPEN, ClientSecurity
from mailboat.store.message_store import MessageStore

_log: Final = logging.getLogger(__name__)

_READ_BYTES: Final = 256 << 10
# In one go: some hundred records, where a frame may have tens of thousands.
_TAKEN_BYTES: Final = 64 << 10
# Of what it says of itself, for which RocketMQ takes some 20 KiB.
_MOST_ANSWER_BYTES: Final = 256 << 10
_SHOWN_CHARACTERS: Final = 200
_CONNECT_TIMEOUT_S: Final = 3.0
_ASK_TIMEOUT_S: Final = 5.0
_CHECK_S: Final = 10.0
_AGAIN_S: Final = 1.0
_SAMPLE_S: Final = 1.0
# Of the end of both logs, and as much more as it takes to have a record's head. Those of two
# masters that wrote on by themselves differ in their times.
_COMPARED_BYTES: Final = 1 << 20
# Every broker of RocketMQ has this setting, and no broker of ours.
_THEIR_KEY: Final = "haTransferBatchSize"


class _Standing(NamedTuple):
    """Where a master's log begins and ends, as physical offsets."""

    start: int
    end: int


class _Check(NamedTuple):
    """A question where a master's log ends, and where the log here ended before it."""

    asking: asyncio.Task[_Standing]
    end: int


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
        config: MessageStoreConfig,
        refuses: Callable[[], str],
        on_followed: Callable[[int], None],
        on_lost: Callable[[str], None],
        security: ClientSecurity = OPEN,
    ) -> None:
        """Follow with an open store; `on_lost` gets an address that is not followed any more.

        With `security` it is asked where clients ask; its log comes plainly, as it knows no TLS
        there.
        """
        self._store = store
        self._config = config
        self._segment_bytes = config.mapped_file_size_commit_log
        self._refuses = refuses
        self._on_followed = on_followed
        self._on_lost = on_lost
        self._client = RemotingClient(Dispatcher(), name="master of RocketMQ", security=security)
        self._client_addresses: dict[str, str] = {}
        self._found = asyncio.Event()
        self._address = ""
        # The one that is followed, and those that wait until it is not any more.
        self._candidates: list[str] = []
        self._writer: asyncio.StreamWriter | None = None
        self._tail: RecordTail | None = None
        self._check_of: _Check | None = None
        self._sessions = 0
        self._begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._reported_s = -math.inf
        self._standing = _Standing(-1, -1)
        self.flow = Flow(self._loop.time())
        self.problem = ""
        """Why it is not followed now, empty while it is or there is none."""

    @property
    def is_followed(self) -> bool:
        """Whether the master sends its log."""
        return self._tail is not None

    @property
    def session(self) -> int:
        """Another number for each connection over which its log comes, 0 while none does."""
        return 0 if self._tail is None or self._refuses() else self._sessions

    @property
    def address(self) -> str:
        """Where the master replicates, empty before there is one."""
        return self._address

    @property
    def start(self) -> int:
        """The physical offset where its log began when it was asked last, -1 before."""
        return self._standing.start

    @property
    def end(self) -> int:
        """The physical offset up to which its log goes at least, -1 if that is not known."""
        received = -1 if self._tail is None else self._tail.received_end
        return max(self._standing.end, received)

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of it; infinite if nothing ever was."""
        return self._loop.time() - self._heard_s

    @property
    def unsaid_s(self) -> float:
        """How long nothing was reported to it; infinite if nothing ever was."""
        return self._loop.time() - self._reported_s

    async def followed(self) -> None:
        """Return once the master sends its log."""
        await self._begun.wait()

    @property
    def client_address(self) -> str:
        """Where the master serves clients, as far as is known."""
        return self._client_addresses.get(self._address) or _client_address(self._address)

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
        # Not on the loop: lines are taken one by one.
        answer = _small(await self.ask(RequestCode.GET_BROKER_CONFIG))
        self._check_config(await asyncio.to_thread(_config, answer))
        begin, overlap = await self._end_of_log(await self._ask())
        host, _, port = self._address.rpartition(":")
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, self._writer = await asyncio.open_connection(host.strip("[]"), int(port))
        self._writer.write(begin.to_bytes(8, "big"))
        frames = FrameDecoder()
        loop = self._loop
        self._heard_s = checked_s = sampled_s = loop.time()
        expected = begin
        while True:
            progress.beat(SILENT_S + _ASK_TIMEOUT_S)
            data = await _read(reader)
            if self._refuses():
                return  # A person let this broker lead meanwhile, here or below.
            now_s = loop.time()
            if data:
                self._heard_s = now_s
                self.flow.size_bytes += len(data)
            elif now_s - self._heard_s > SILENT_S:
                raise OSError(f"it sent nothing for {SILENT_S:g} s")
            for physical_offset, records in frames.feed(data):
                if physical_offset != expected:
                    raise RemoteProtocolError(f"it sends {physical_offset} and not {expected}")
                expected += len(records)
                records_behind = self._compare(overlap, records)
                if overlap.is_over:
                    for at in range(0, len(records_behind) or 1, _TAKEN_BYTES):
                        self._take(records_behind[at : at + _TAKEN_BYTES], begin)
                        await asyncio.sleep(0)
                        if self._refuses():
                            return
            if now_s - self._reported_s >= HEARTBEAT_S:
                self._report()
            if now_s - sampled_s >= _SAMPLE_S:
                sampled_s = now_s
                self.flow.sample(now_s)
            if now_s - checked_s >= _CHECK_S:
                checked_s = now_s
                self._begin_check()
            if self._check_of is not None and self._check_of.asking.done():
                self._end_check(self._check_of)

    def _begin_check(self) -> None:
        """Ask where its log ends, and go on meanwhile: its clients wait for what is reported."""
        if self._check_of is None:
            self._check_of = _Check(self._loop.create_task(self._ask()), self._own_end())

    def _end_check(self, check: "_Check") -> None:
        """Look at the answer; without one the next check may have it.

        Raises:
            DivergedError: the log here cannot go on with this master.
            RemoteProtocolError: no log lies where the master says.
        """
        self._check_of = None
        error = check.asking.exception()
        if error is None:
            self._check(check.asking.result(), check.end)
        elif isinstance(error, MailboatError | OSError):
            _log.debug("master of RocketMQ does not say where its log ends: %s", error)
        else:
            raise error

    def _take(self, data: bytes, begin: int) -> None:
        """Write what is whole of bytes that follow those before."""
        replica = self._store.replica
        if self._tail is None:
            self._tail = RecordTail(replica.end, self._segment_bytes)
            self._sessions += 1
            self._begun.set()
            self.problem = ""
            _log.info("following master of RocketMQ address=%s from=%d", self._address, replica.end)
            if begin > replica.end:
                # It was asked for the log from its second byte on. The first one is the highest of
                # a size, which is below 16 MiB.
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
        self._reported_s = self._loop.time()
        writer.write(min(end, tail.received_end).to_bytes(8, "big"))

    def _end_connection(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = self._tail = None
        if self._check_of is not None:
            self._check_of.asking.cancel()
            self._check_of = None
        self._begun.clear()

    def _own_end(self) -> int:
        """Return where the log here ends; an empty one may begin anywhere."""
        replica = self._store.replica
        return 0 if replica.is_empty else replica.end

    # -- whether the logs are one ---------------------------------------------------------------

    async def _ask(self) -> _Standing:
        """Ask where its log begins and ends."""
        table = decode_kv_table(_small(await self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)))
        try:
            start, end = (int(table[f"commitLog{name}Offset"]) for name in ("Min", "Max"))
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"it does not say where its log ends: {error}") from error
        self._standing = _Standing(start, end)
        return self._standing

    async def ask(self, code: int) -> bytes:
        """Return what the master answers where clients ask.

        Raises:
            MailboatError: it did not answer, or refused.
        """
        answer = await self._client.request(
            self.client_address, RemotingCommand.request(code), _ASK_TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "")
        return answer.body

    async def ask_end(self) -> int:
        """Return the physical offset where the master's log ends.

        Raises:
            MailboatError: it did not answer, or refused.
        """
        return (await self._ask()).end

    def _check_config(self, theirs: dict[str, str]) -> None:
        """Refuse a master whose log this broker cannot continue.

        Raises:
            DivergedError: segments or delay levels are others.
        """
        for key, own in (
            ("mappedFileSizeCommitLog", str(self._segment_bytes)),
            # Delayed messages know their level, and not for how long they are to wait.
            ("messageDelayLevel", self._config.message_delay_level),
        ):
            if (value := theirs.get(key, own)) != own:
                value = value[:_SHOWN_CHARACTERS]
                raise DivergedError(f"its {key} is {value}, here it is {own}: they must be equal")

    def _check(self, standing: _Standing, end: int) -> None:
        """Refuse a log that cannot go on with this master: it would send nothing and not say why.

        `end` is where the log here ended before the master was asked.

        Raises:
            DivergedError: it is beyond the end of the master's, or before its beginning.
            RemoteProtocolError: no log lies where the master says.
        """
        # A master without any file says that it begins at -1.
        is_place = 0 <= standing.start <= standing.end < MOST_OFFSET
        if standing.end and not (is_place and standing.start % self._segment_bytes == 0):
            raise RemoteProtocolError(
                f"it says that its log goes from {standing.start} to {standing.end}"
            )
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

    async def _end_of_log(self, standing: _Standing) -> tuple[int, Overlap]:
        """Return from where to ask for the log, and what the log here has from there on.

        Raises:
            OSError: it cannot be read now, or the master has nothing.
        """
        self._check(standing, self._own_end())
        replica = self._store.replica
        begin, data = standing.start, b""
        if not replica.is_empty:
            begin, data = await asyncio.to_thread(replica.tail_job(_COMPARED_BYTES))
        elif not standing.end:
            raise OSError("it has no message yet")
        elif replica.end != begin:
            replica.begin_at(begin)
        segment_end = begin - begin % self._segment_bytes + self._segment_bytes
        if not begin:
            begin, data = 1, data[1:]  # From 0 the master would send the last segment only.
        return begin, Overlap(data, begin, segment_end)

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


def _small(answer: bytes) -> bytes:
    """Return what a master says of itself.

    Raises:
        RemoteProtocolError: it is more than any master says.
    """
    if len(answer) > _MOST_ANSWER_BYTES:
        raise RemoteProtocolError(f"it says {len(answer)} bytes of itself")
    return answer


def _client_address(address: str) -> str:
    """Return where a broker most probably serves clients, by where it replicates."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 1}"


def _config(answer: bytes) -> dict[str, str]:
    """Read the configuration of a broker.

    Raises:
        RemoteProtocolError: it is not that of a broker of RocketMQ.
    """
    try:
        found = {entry.key: entry.value for entry in parse_properties(answer.decode())}
    except (ConfigError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"its configuration cannot be read: {error}") from error
    if _THEIR_KEY not in found:
        raise RemoteProtocolError("it is no broker of RocketMQ, and does not speak as ours do")
    return found
