"""Ends of transactions: a commit stores the real message, a rollback only that there was one.

The ends that one round of the event loop has read are stored together, in an order that a kill at
any point does no harm to: first the messages of commits, then one op record for all. An end is
acknowledged once both are stored, and durable with SYNC_FLUSH. A rollback without its op record is
refused: the producer is asked again.

Each half message ends once, however many requests say so: what has ended is answered, not stored
again.

Source: apache/rocketmq broker/processor/EndTransactionProcessor.java @ rocketmq-all-5.3.3. RocketMQ
delivers twice when two requests commit one half message, or one was asked about and stored again.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from mailboat.broker.flush_service import FlushService
from mailboat.broker.stored_message import Restorer
from mailboat.broker.transactions.ledger import HalfLedger, HalfRecord
from mailboat.broker.transactions.parts import TransactionCounters, TransactionsBroker
from mailboat.broker.transactions.records import (
    IMMUNITY,
    committed_message,
    immunity_s,
    real_queue_id,
    real_topic,
    stored_checks,
)
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.names import HALF_TOPIC
from mailboat.model.properties import PropertyName
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import answer_error, encode_answer
from mailboat.store.message_inner import MessageInner, PutStatus

_log = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""Ends that wait, mostly while the store is looked through after a start or a disk hangs; further
ones are answered SYSTEM_BUSY, and their producers asked later."""

_TOGETHER_MAX: Final = 64
# A large message takes ten milliseconds to read, and as long to store.
_READ_S: Final = 0.005
_STORED_BYTES: Final = 1024 * 1024
_REMEMBERED: Final = 4_096


class EndRequest(NamedTuple):
    """One END_TRANSACTION."""

    connection: Connection
    command: RemotingCommand
    """Without its content: thousands may wait for a disk that hangs."""

    producer_group: str
    queue_offset: int
    physical_offset: int
    is_commit: bool
    from_check: bool


@dataclass(slots=True)
class _End:
    """One half message that ends in this round, and everybody who asked for it."""

    half: MessageExt
    is_commit: bool
    queue_id: int = 0
    """Queue of the real topic that a commit goes to."""

    checks: int = 0
    """How often somebody was asked about it."""

    record: HalfRecord | None = None
    """What the core can make the message of, None where Python has to."""

    message: MessageInner | None = None
    """The message, where Python has made it."""

    requests: list[EndRequest] = field(default_factory=list)


class TransactionEnds:
    """Takes the ends of one broker's transactions."""

    def __init__(
        self,
        broker: TransactionsBroker,
        flush: FlushService,
        ledger: HalfLedger,
        counters: TransactionCounters,
    ) -> None:
        """Store to one broker."""
        self._broker = broker
        self._flush = flush
        self._ledger = ledger
        self._counters = counters
        self._gathered: deque[EndRequest] = deque()
        # Requests that wait for a search.
        self._looked_for = 0
        # And those that wait for a flush.
        self._unsettled = 0
        self._remembered: dict[int, bool] = {}
        self.restorer: Restorer | None = None
        """Stores many messages at a time, None where there is no compiled core."""

    def take(self, request: EndRequest) -> None:
        """Store an end with the others of this round, and answer then.

        Raises:
            BrokerError: too many wait.
        """
        if len(self._gathered) + self._looked_for + self._unsettled >= WAITING_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]too many ends of transactions wait, try again later",
            )
        self._gather(request)

    def _gather(self, request: EndRequest) -> None:
        if not self._gathered and self._ledger.is_ready:
            asyncio.get_running_loop().call_soon(self.store_gathered)
        self._gathered.append(request)

    def store_gathered(self) -> None:
        """Store what has gathered, in bounded batches; the rest takes the next round."""
        if not self._ledger.is_ready or not self._broker.store.is_open:
            return
        ends: dict[int, _End] = {}
        end_s = time.monotonic() + _READ_S
        records: dict[int, HalfRecord] = {}
        if self.restorer is not None:
            together = islice(self._gathered, _TOGETHER_MAX)
            records = self._ledger.read(
                [(request.queue_offset, request.physical_offset) for request in together]
            )
        stored_bytes = 0
        for _ in range(min(len(self._gathered), _TOGETHER_MAX)):
            request = self._gathered.popleft()
            try:
                stored_bytes += self._add(request, ends, records.get(request.physical_offset))
            except Exception as error:
                # A bug of ours ends this request alone: it is logged, and the others go on.
                self._answer(request, error)
            if time.monotonic() > end_s or stored_bytes > _STORED_BYTES:
                break
        if self._gathered:
            # They have their turn also if storing those of this round fails.
            asyncio.get_running_loop().call_soon(self.store_gathered)
        if ends:
            self._store(list(ends.values()))

    # -- what a request says --------------------------------------------------------------------

    def _add(self, request: EndRequest, ends: dict[int, _End], record: HalfRecord | None) -> int:
        """Add a request to the ends of this round, or answer it where it changes nothing.

        Returns:
            How many bytes it stores.
        """
        half = self._ledger.at(request.physical_offset) if record is None else record.message
        half = self._checked_half(request, half)
        offset = half.queue_offset
        known = ends.get(offset)
        if known is not None:
            if known.is_commit != request.is_commit:
                raise _ended_otherwise(half)
            known.requests.append(request)
            return 0
        ledger = self._ledger
        ledger.window.extend(offset + 1)
        if not ledger.window.is_open(offset):
            by_commit = self._ended_by_commit(half, request)
            if by_commit is None:
                return 0
            if by_commit != request.is_commit:
                raise _ended_otherwise(half)
            self._answer(request)
            return 0
        was_cut_off = ledger.was_cut_off(half, partial(self._take_again, request))
        if was_cut_off is None:
            self._looked_for += 1
        elif was_cut_off:
            ledger.close([offset])
            if not request.is_commit:
                raise _ended_otherwise(half)
            self._answer(request)
        else:
            self._refuse_late(request, half)
            end = _End(half, request.is_commit, requests=[request])
            if request.is_commit:
                end.queue_id = self._real_queue_id(half)
                end.checks = stored_checks(half) + ledger.window.checks(offset)
                is_plain = not end.checks and end.queue_id == real_queue_id(half)
                end.record = record if is_plain else None
            ends[offset] = end
            return len(half.body) if request.is_commit else 0
        return 0

    def _checked_half(self, request: EndRequest, half: MessageExt | None) -> MessageExt:
        """Return the half message that a request names; the sentences begin with RocketMQ's."""
        if half is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed: there is none at commitLogOffset "
                f"{request.physical_offset}, or it has expired",
            )
        if half.topic != HALF_TOPIC:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed: the message at commitLogOffset "
                f"{request.physical_offset} is none",
            )
        if half.properties.get(PropertyName.PRODUCER_GROUP) != request.producer_group:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                "The producer group wrong: the message was not prepared by "
                f"{request.producer_group}",
            )
        if half.queue_offset != request.queue_offset:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The transaction state table offset wrong: tranStateTableOffset is "
                f"{request.queue_offset}, the message at commitLogOffset "
                f"{request.physical_offset} has another",
            )
        return half

    def _ended_by_commit(self, half: MessageExt, request: EndRequest) -> bool | None:
        """Tell how a half message ended, None while that is looked for."""
        known = self._remembered.get(half.queue_offset)
        if known is None and not self._ledger.can_tell_end(half):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of the half message at queue offset {half.queue_offset} has "
                "ended; without an index (messageIndexEnable) nobody knows any more how",
            )
        if known is None:
            known = self._ledger.was_delivered(half, partial(self._take_again, request))
            self._looked_for += known is None
        return known

    def _take_again(self, request: EndRequest) -> None:
        """Go on with a request once it is known what it had to wait for."""
        self._looked_for -= 1
        self._gather(request)

    def _refuse_late(self, request: EndRequest, half: MessageExt) -> None:
        """Leave a transaction with an immunity time of its own to the checks once that is over."""
        if request.from_check or IMMUNITY not in half.properties:
            return
        timeout_s = self._broker.settings.broker.transaction_time_out / 1000
        if self._ledger.age_s(half) > max(immunity_s(half, timeout_s), timeout_s):
            raise BrokerError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the end comes after the {IMMUNITY} of its message; the producer will be asked",
            )

    def _real_queue_id(self, half: MessageExt) -> int:
        topic, queue_id = real_topic(half), real_queue_id(half)
        config = self._broker.topics.select(topic)
        if config is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist: it was deleted after the message was prepared. The "
                "transaction stays open; create the topic to let it be committed.",
            )
        if queue_id >= config.read_queue_nums > 0:
            # The topic has fewer queues now: nobody reads the one that was asked for.
            queue_id %= config.read_queue_nums
        return queue_id

    # -- storing --------------------------------------------------------------------------------

    def _store(self, ends: list[_End]) -> None:
        self._store_messages([end for end in ends if end.is_commit])
        stored: list[_End] = []
        for end in ends:
            if end.message is None or end.message.status == PutStatus.PUT_OK:
                stored.append(end)
            else:
                self._answer_all(end, self._failure(end.message))
        done: list[_End] = []
        op_stored = self._ledger.write_ops([end.half.queue_offset for end in stored])
        for end in stored:
            if end.is_commit or end.half.queue_offset in op_stored:
                done.append(end)
            else:
                is_unknown = self._broker.store.commit_log.failure is not None
                self._answer_all(end, _unknown() if is_unknown else self._unavailable())
        self._ended(done, op_stored)
        self._acknowledge(done)

    def _store_messages(self, commits: list[_End]) -> None:
        """Store the messages of commits: those that begin them and are ordinary with the core."""
        restorer = self.restorer
        records: list[HalfRecord] = []
        for end in commits:
            if end.record is None:
                break
            records.append(end.record)
        count = 0
        is_unknown = False
        store = self._broker.store
        if records and restorer is not None and store.refusal() is None:
            data = b"".join([record.record for record in records])
            places = b"".join([record.place for record in records])
            count = restorer.restore(data, places, are_halves=True, queue_id=0)
            is_unknown = store.commit_log.failure is not None
        messages: list[MessageInner] = []
        for end in commits[count:]:
            end.message = committed_message(end.half, end.queue_id, end.checks)
            messages.append(end.message)
        if is_unknown:
            for message in messages[: len(records)]:
                message.status = PutStatus.FLUSH_DISK_TIMEOUT
            messages = messages[len(records) :]
        if messages:
            store.put_messages(messages)
            if restorer is not None:
                restorer.learn({(message.topic, message.queue_id) for message in messages})

    def _ended(self, ends: list[_End], op_stored: set[int]) -> None:
        """Note what has ended; a commit that has no op record yet gets one later."""
        self._ledger.close_written([end.half.queue_offset for end in ends], op_stored)
        for end in ends:
            self._remembered[end.half.queue_offset] = end.is_commit
            if not end.is_commit:
                self._counters.rolled_back += 1
                continue
            self._counters.committed += 1
            if end.message is not None:
                self._broker.stats.record_put(end.message.topic, 1, end.message.size_bytes)
        while len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _failure(self, message: MessageInner) -> BrokerError:
        self._broker.stats.record_put_failed()
        if message.status == PutStatus.FLUSH_DISK_TIMEOUT:
            return _unknown()
        if message.status == PutStatus.MESSAGE_ILLEGAL:
            return BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: it was prepared under other limits and does not fit the "
                "present ones; the transaction stays open",
            )
        return self._unavailable()

    def _unavailable(self) -> BrokerError:
        reason = self._broker.store.why_refused()
        return BrokerError(
            ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {reason}"
        )

    # -- answers --------------------------------------------------------------------------------

    def _acknowledge(self, ends: list[_End]) -> None:
        if not self._broker.store.holds_back:
            for end in ends:
                self._answer_all(end)
            return

        # Not the ends, which hold bodies: a disk may hang for long.
        requests = [request for end in ends for request in end.requests]

        self._unsettled += len(requests)

        def settled(code: int) -> None:
            self._unsettled -= len(requests)
            for request in requests:
                self._answer(request, _unknown() if code else None)

        self._flush.wait_settled(self._broker.store.commit_log.end, settled)

    def _answer_all(self, end: _End, error: Exception | None = None) -> None:
        for request in end.requests:
            self._answer(request, error)

    def _answer(self, request: EndRequest, error: Exception | None = None) -> None:
        command = request.command
        if error is not None:
            _log.debug(
                "end of a transaction refused peer=%s group=%s queue_offset=%d: %s",
                request.connection.peer,
                request.producer_group,
                request.queue_offset,
                error,
            )
            answer = answer_error(command, error)
        else:
            answer = command.response(ResponseCode.SUCCESS)
        data = encode_answer(command, answer)
        if data is not None:
            request.connection.write(data)


def _ended_otherwise(half: MessageExt) -> BrokerError:
    return BrokerError(
        ResponseCode.SYSTEM_ERROR,
        f"the transaction of the half message at queue offset {half.queue_offset} has ended in "
        "another way already, or was given up",
    )


def _unknown() -> BrokerError:
    return BrokerError(
        ResponseCode.FLUSH_DISK_TIMEOUT,
        "it is unknown whether the end of the transaction is on the disk",
    )
