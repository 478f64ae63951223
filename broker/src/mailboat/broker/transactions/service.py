"""Transactions of one broker: half messages in, their ends, and the task that looks after both."""

import asyncio
from collections.abc import Mapping
from typing import Final

from mailboat.broker.flush_service import FlushService
from mailboat.broker.stored_message import Restorer
from mailboat.broker.supervisor import TaskProgress
from mailboat.broker.transactions.checks import CheckRounds
from mailboat.broker.transactions.ends import EndRequest, TransactionEnds
from mailboat.broker.transactions.ledger import HalfLedger
from mailboat.broker.transactions.parts import TransactionCounters, TransactionsBroker
from mailboat.broker.transactions.records import half_message, resumed_message
from mailboat.disk import Disk
from mailboat.errors import BrokerError
from mailboat.model.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from mailboat.protocol.codes import ResponseCode
from mailboat.store.message_inner import MessageInner, PutStatus

_ROUND_PAUSE_S: Final = 0.02
_REBUILD_PAUSE_S: Final = 0.003
_TICK_MAX_S: Final = 1.0
_TICK_MIN_S: Final = 0.02
_TICKS_A_PERIOD: Final = 8


class TransactionalMessageService:
    """Keeps half messages until they are committed, rolled back or given up."""

    def __init__(self, broker: TransactionsBroker, flush: FlushService, disk: Disk) -> None:
        """Work for one broker; `run` begins with what its store holds."""
        self._broker = broker
        self.ledger = HalfLedger(broker, disk)
        self.counters = TransactionCounters()
        """What became of half messages."""

        self._ends = TransactionEnds(broker, flush, self.ledger, self.counters)
        self._checks = CheckRounds(broker, self.ledger, self.counters)

    @property
    def restorer(self) -> Restorer | None:
        """What stores many committed messages at a time, None where there is no compiled core."""
        return self._ends.restorer

    @restorer.setter
    def restorer(self, restorer: Restorer | None) -> None:
        self._ends.restorer = restorer

    @property
    def open_halves(self) -> int:
        """How many half messages are neither committed nor rolled back nor given up."""
        return self.ledger.window.open_count

    @property
    def is_ready(self) -> bool:
        """Whether it is known, after a start, which half messages are open."""
        return self.ledger.is_ready

    def prepare(self, message: MessageInner, properties: Mapping[str, str]) -> MessageInner:
        """Make a message with TRAN_MSG one of the half topic.

        Args:
            message: as it was sent, with its real topic and queue.
            properties: everything that is to be stored with it.

        Raises:
            BrokerError: this broker takes none, or the message cannot be one.
        """
        config = self._broker.settings.broker
        if config.reject_transaction_message:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_name}] sending transaction message is forbidden "
                "(rejectTransactionMessage=true)",
            )
        return half_message(message, properties)

    def end(self, request: EndRequest) -> None:
        """Commit or roll back, and answer.

        Raises:
            BrokerError: too many requests wait.
        """
        self._ends.take(request)

    def resume(self, physical_offset: int) -> None:
        """Ask again about a half message that was given up, or anew about one that is open.

        Raises:
            BrokerError: there is no such message, it has ended, or it cannot be stored.
        """
        if not self.ledger.is_ready:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                "the broker has just started and still reads which transactions are open, try "
                "again later",
            )
        message = self.ledger.at(physical_offset)
        if message is not None and message.topic == HALF_TOPIC:
            self.ledger.window.extend(message.queue_offset + 1)
            if not self.ledger.window.is_open(message.queue_offset):
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    "the transaction of this half message has ended; where it was given up, name "
                    f"its message in {CHECK_MAX_TIME_TOPIC}",
                )
            self.ledger.window.forget_checks(message.queue_offset)
            return
        if message is None or message.topic != CHECK_MAX_TIME_TOPIC:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"there is no half message, and none of {CHECK_MAX_TIME_TOPIC}, at physical "
                f"offset {physical_offset}",
            )
        half = resumed_message(message)
        self._broker.store.put_messages([half])
        if half.status != PutStatus.PUT_OK:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"Put message back to {HALF_TOPIC} failed: {self._broker.store.refusal()}",
            )

    # -- the task -------------------------------------------------------------------------------

    async def run(self, progress: TaskProgress) -> None:
        """Find out what is open, then look after it for good."""
        self.ledger.is_stopping = False
        try:
            await self._look_after(progress)
        finally:
            self.ledger.is_stopping = True

    async def _look_after(self, progress: TaskProgress) -> None:
        ledger = self.ledger
        await self._until_all_is_shown(progress)
        await progress.finish(ledger.rebuild(), _REBUILD_PAUSE_S, self._tick)
        self._ends.store_gathered()
        loop = asyncio.get_running_loop()
        last_round = loop.time()
        while True:
            self.counters.lost += ledger.tick()
            # The interval may have changed since the last round.
            if loop.time() >= last_round + self._interval_s:
                await progress.finish(self._checks.round(), _ROUND_PAUSE_S, self._tick)
                last_round = loop.time()
            progress.beat()
            await asyncio.sleep(self._tick_s)

    async def _until_all_is_shown(self, progress: TaskProgress) -> None:
        """Wait for what is in the log: who begins to lead may have ends that are not confirmed yet.

        They count, but are not in the queues before; what they ended would be committed once more.
        """
        store = self._broker.store
        log_end = store.commit_log.end
        while store.dispatch.is_holding_below(log_end):
            progress.beat()
            await asyncio.sleep(_TICK_MIN_S)

    @property
    def _interval_s(self) -> float:
        return self._broker.settings.broker.transaction_check_interval / 1000

    @property
    def _tick_s(self) -> float:
        """How exactly the age of half messages is known."""
        period_s = min(self._interval_s, self._broker.settings.broker.transaction_time_out / 1000)
        return min(max(period_s / _TICKS_A_PERIOD, _TICK_MIN_S), _TICK_MAX_S)

    def _tick(self) -> None:
        if self.ledger.is_ready:
            self.counters.lost += self.ledger.tick()
