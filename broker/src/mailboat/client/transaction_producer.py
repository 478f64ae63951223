"""Sending messages that are delivered only if a local transaction commits.

The broker keeps the message back (a half message) until it hears how the local transaction ended.
If it does not hear, it asks any producer of the group, so programs must be able to tell the outcome
from what they stored themselves.

Source: apache/rocketmq client/producer/TransactionMQProducer.java and
client/impl/producer/DefaultMQProducerImpl.java (sendMessageInTransaction, checkTransactionState).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mailboat.client.addresses import DEFAULT_NAMESRV
from mailboat.client.background import cancel_requests
from mailboat.client.broker_calls import TransactionEnd
from mailboat.client.callbacks import call_back
from mailboat.client.outgoing import COMPRESS_ABOVE_BYTES, prepare_half_message
from mailboat.client.producer import SEND_TIMEOUT_S, Producer
from mailboat.client.send_result import SendResult, SendStatus
from mailboat.client.sending import RETRIES
from mailboat.errors import MailboatError, RemoteProtocolError
from mailboat.model.message import Message, MessageExt
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.properties import PropertyName
from mailboat.model.record import locate, to_message
from mailboat.model.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand, optional_str, required_int
from mailboat.remoting.connection import Connection
from mailboat.security.client_security import OPEN, ClientSecurity

logger = logging.getLogger(__name__)

CHECK_CONCURRENCY: Final = 4
# Checks that wait for their turn; more are dropped, as the broker asks again.
MAX_WAITING_CHECKS: Final = 2000


class TransactionState(Enum):
    """How a local transaction ended; brokers ask again about UNKNOWN. The values are the wire's."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE


Execute = Callable[[Message, str], Awaitable[TransactionState]]
"""Runs the local transaction of a message; the text is the transaction's id, to be stored with it.
Raising means UNKNOWN: the broker will ask `Check`."""

Check = Callable[[MessageExt], Awaitable[TransactionState]]
"""Tells how the transaction `message.unique_key` ended; raising means UNKNOWN."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """How a half message was stored, and how its transaction ended.

    `sent.message_id` is the transaction's id; `sent.queue_offset` is the half message's.
    """

    sent: SendResult
    state: TransactionState


@dataclass(frozen=True, slots=True)
class _CheckRequest:
    """A broker's question, and the connection that it wants the answer on."""

    connection: Connection
    message: MessageExt
    end: TransactionEnd


class TransactionProducer(Producer):
    """A producer that can also send messages as part of local transactions.

    Example:
        async def execute(message: Message, transaction_id: str) -> TransactionState:
            await database.pay(order, transaction_id)
            return TransactionState.COMMIT

        async def check(message: MessageExt) -> TransactionState:
            paid = await database.has(message.unique_key)
            return TransactionState.COMMIT if paid else TransactionState.ROLLBACK

        async with TransactionProducer("payments", check) as producer:
            result = await producer.send_in_transaction(Message("paid", b"..."), execute)
    """

    def __init__(
        self,
        group: str,
        check: Check,
        *,
        topics: Iterable[str] = (),
        check_concurrency: int = CHECK_CONCURRENCY,
        namesrv: str = DEFAULT_NAMESRV,
        security: ClientSecurity = OPEN,
        retries: int = RETRIES,
        latency_fault_avoidance: bool = False,
        compression: str = "zlib",
        compression_level: int | None = None,
        compress_above_bytes: int = COMPRESS_ABOVE_BYTES,
    ) -> None:
        """Prepare a producer; arguments that are not listed are those of `Producer`.

        Args:
            group: the producer group; brokers ask any of its producers about open transactions.
            check: tells how a transaction ended, of this producer or of another one of the group.
            topics: topics whose brokers may ask from the start on; others may after the first send
                to them. Name those of the last run, or its open transactions wait for that send.
            check_concurrency: how many calls of `check` may run at the same time.
            namesrv: name servers as `HOST:PORT;...`.
            security: what requests are signed with, and how servers are connected to.
            retries: how often a send that failed is tried again.
            latency_fault_avoidance: pass over brokers that were slow or failed for a while.
            compression: `zlib`, `lz4` or `zstd`.
            compression_level: the codec's own level.
            compress_above_bytes: bodies up to this size are not compressed.

        Raises:
            IllegalMessageError: the group's name is illegal.
            ConfigError: `namesrv` is not a list of addresses, or `compression` is unknown.
        """
        super().__init__(
            group,
            namesrv=namesrv,
            security=security,
            retries=retries,
            latency_fault_avoidance=latency_fault_avoidance,
            compression=compression,
            compression_level=compression_level,
            compress_above_bytes=compress_above_bytes,
        )
        self._check = check
        self._check_topics = tuple(topics)
        self._check_concurrency = check_concurrency
        self._checks: asyncio.Queue[_CheckRequest] = asyncio.Queue(MAX_WAITING_CHECKS)
        self._instance.handle(RequestCode.CHECK_TRANSACTION_STATE, self._check_asked)

    async def start(self) -> None:
        """Begin; the brokers of `topics` learn that they can ask this producer."""
        await super().start()
        for number in range(self._check_concurrency):
            self._instance.tasks.spawn(self._answer_checks, f"transaction check {number}")
        try:
            await self._learn_routes()
        except BaseException:
            await self.close()
            raise

    async def _learn_routes(self) -> None:
        for topic in self._check_topics:
            try:
                await self._instance.routes.write_queues(topic)
            except MailboatError as error:
                logger.warning("topic=%s is looked for again with the first send: %s", topic, error)

    async def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout_s: float = SEND_TIMEOUT_S
    ) -> TransactionResult:
        """Store a half message, run the local transaction, and tell the broker how it ended.

        `execute` does not run, and the message is rolled back, if the half message is stored less
        safely than the broker was set to (any status but SEND_OK). What `execute` raises is logged
        and means UNKNOWN.

        Args:
            message: what to deliver if the transaction commits.
            execute: runs the local transaction.
            timeout_s: for storing the half message.

        Raises:
            IllegalMessageError: the message breaks a limit or is delayed; nothing was sent.
            MailboatError: the half message is not, or may not be, stored, as for `send`; `execute`
                did not run, and if it is stored after all, `check` will be asked.
        """
        keys = self._started_keys()
        outgoing = prepare_half_message(message, self.group, keys, self._compression)
        sent = await self._sender.send(message.topic, outgoing, None, timeout_s)
        error: BaseException | None = None
        if sent.status is SendStatus.SEND_OK:
            state, error = await self._execute(execute, message, sent.message_id)
        else:
            logger.warning(
                "half message topic=%s id=%s stored as %s only: rolled back",
                message.topic,
                sent.message_id,
                sent.status.value,
            )
            state = TransactionState.ROLLBACK
        await self._end(message.topic, sent, state, error)
        return TransactionResult(sent, state)

    async def _execute(
        self, execute: Execute, message: Message, transaction_id: str
    ) -> tuple[TransactionState, BaseException | None]:
        requests_before = cancel_requests()
        try:
            return _state(await execute(message, transaction_id)), None
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancel_requests() > requests_before:
                raise
            # Whatever it raised, only `check` can tell whether the transaction had committed.
            logger.exception(
                "local transaction failed, state unknown topic=%s id=%s",
                message.topic,
                transaction_id,
            )
            return TransactionState.UNKNOWN, error

    async def _end(
        self, topic: str, sent: SendResult, state: TransactionState, error: BaseException | None
    ) -> None:
        queue = sent.message_queue
        try:
            end = TransactionEnd(
                group=self.group,
                topic=topic,
                broker_name=queue.broker_name,
                queue_offset=sent.queue_offset,
                physical_offset=decode_offset_message_id(sent.offset_message_id).physical_offset,
                message_id=sent.message_id,
                transaction_id=sent.message_id,
            )
            address = await self._instance.routes.master_address(queue)
            await self._instance.remoting.oneway(address, end.to_command(state.value, error))
        except MailboatError as failure:
            logger.warning(
                "end of transaction id=%s state=%s not told, the broker will ask: %s",
                sent.message_id,
                state.name,
                failure,
            )

    def _check_asked(self, connection: Connection, command: RemotingCommand) -> None:
        """Take a broker's question; it asks again about those that are not answered."""
        message = _read_message(command.body)
        group = message.properties.get(PropertyName.PRODUCER_GROUP)
        if group != self.group:
            logger.warning("broker %s asks about group %s", connection.peer, group)
            return
        message_id = message.unique_key or optional_str(command, "msgId") or ""
        end = TransactionEnd(
            group=self.group,
            topic=message.topic,
            broker_name=optional_str(command, "bname"),
            queue_offset=required_int(command, "tranStateTableOffset"),
            physical_offset=required_int(command, "commitLogOffset"),
            message_id=message_id,
            transaction_id=optional_str(command, "transactionId") or message_id,
            from_check=True,
        )
        try:
            self._checks.put_nowait(_CheckRequest(connection, message, end))
        except asyncio.QueueFull:
            logger.warning("%d transaction checks wait already: dropped", MAX_WAITING_CHECKS)

    async def _answer_checks(self) -> None:
        while True:
            request = await self._checks.get()
            failure: Exception | None = None
            try:
                state = _state(await call_back(self, self._check, request.message, None))
            except Exception as error:
                # Whatever it raised, the outcome is not known now, and the broker asks again.
                logger.exception("transaction check failed id=%s", request.end.message_id)
                state, failure = TransactionState.UNKNOWN, error
            request.connection.send_oneway(request.end.to_command(state.value, failure))


def _state(outcome: object) -> TransactionState:
    """Return what a callback answered; a forgotten `return` must not pass for an outcome."""
    if not isinstance(outcome, TransactionState):
        raise TypeError(f"the callback returned {outcome!r} and not a TransactionState")
    return outcome


def _read_message(body: bytes) -> MessageExt:
    """Return the message of a check.

    Its checksums are those of the stored half message, whose topic and queue differ.

    Raises:
        RemoteProtocolError: the bytes are not a message.
    """
    try:
        return to_message(body, 0, locate(body, 0, len(body)))
    except ValueError as error:
        raise RemoteProtocolError(f"transaction check without a message: {error}") from None
