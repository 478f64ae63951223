"""The rounds in which producers are asked about half messages that nobody has ended.

A round goes through all open half messages, oldest first. One that is older than
`transactionTimeOut`, or than the CHECK_IMMUNITY_TIME_IN_SECONDS of its own, is asked about: one
question to one member of its producer group, in turn. A question counts also where no member is
connected, as in RocketMQ. After `transactionCheckMax` of them, or once older than
`fileReservedTime`, a half message is given up: a copy goes to TRANS_CHECK_MAX_TIME_TOPIC, from
where an operator may resume it (323).

Unlike in RocketMQ a half message stays where it is between two rounds, and the count of its checks
lives in memory; so it has one place for good, the log does not grow, and a restart begins to count
anew. Its offset in the half topic holds back the group's committed offset, and with it the segment
that it lies in.

Source: apache/rocketmq broker/transaction/queue/TransactionalMessageServiceImpl.java (check) and
DefaultTransactionalMessageCheckListener.java @ rocketmq-all-5.3.3.
"""

import logging
from collections.abc import Iterator
from typing import Final

from mailboat.broker.transactions.check_request import Askers, check_request
from mailboat.broker.transactions.ledger import HalfLedger
from mailboat.broker.transactions.parts import TransactionCounters, TransactionsBroker
from mailboat.broker.transactions.records import given_up_message, immunity_s, stored_checks
from mailboat.broker.warm_reads import warm_steps
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.names import HALF_TOPIC
from mailboat.remoting.turns import Wait
from mailboat.store.message_inner import PutStatus

_log = logging.getLogger(__name__)

_HOUR_S: Final = 3600.0
# Half messages of an earlier life whose messages are looked for at the same time.
_SEARCHES_MAX: Final = 32


class CheckRounds:
    """Looks after the open half messages of one broker."""

    def __init__(
        self, broker: TransactionsBroker, ledger: HalfLedger, counters: TransactionCounters
    ) -> None:
        """Ask the producers that are connected to one broker."""
        self._broker = broker
        self._ledger = ledger
        self._counters = counters
        self._askers = Askers(broker.producers)
        # By queue offset: how many rounds could not read a half message.
        self._unreadable: dict[int, int] = {}

    def round(self) -> Iterator[Wait | None]:
        """Look at every open half message once; yields after each slice of work."""
        window, now = self._ledger.window, self._ledger.now
        # What waits for its flush may have been asked about already, but is in no queue yet.
        limit = min(window.end, self._broker.store.max_offset(HALF_TOPIC, 0))
        offset = window.start
        looked_for: list[int] = []
        self._unreadable = {at: n for at, n in self._unreadable.items() if window.is_open(at)}
        try:
            while offset < limit:
                offset = window.next_open(offset, limit)
                if offset < limit and window.is_open(offset):
                    if not window.is_waiting(offset, now):
                        yield from self._warm(offset)
                        if window.is_open(offset):  # It may have ended meanwhile.
                            self._look_at(offset)
                        if self._ledger.is_looked_for(offset):
                            looked_for.append(offset)
                    offset += 1
                if len(looked_for) >= _SEARCHES_MAX:
                    yield from self._look_again(looked_for)
                yield None
            yield from self._look_again(looked_for)
        except OSError as error:
            _log.warning("open half messages cannot be looked at: %s", error)

    def _look_again(self, looked_for: list[int]) -> Iterator[None]:
        """Look once more at half messages when it is known whether they were delivered."""
        while looked_for:
            if self._ledger.is_looked_for(looked_for[-1]):
                yield
                continue
            queue_offset = looked_for.pop()
            if self._ledger.window.is_open(queue_offset):
                self._look_at(queue_offset)

    def _warm(self, queue_offset: int) -> Iterator[Wait]:
        store = self._broker.store
        return warm_steps(store, store.queues.get(HALF_TOPIC, 0), queue_offset)

    def _look_at(self, queue_offset: int) -> None:
        ledger, window = self._ledger, self._ledger.window
        half = ledger.half(queue_offset)
        if half is None:
            self._note_unreadable(queue_offset)
            return
        self._unreadable.pop(queue_offset, None)
        asked = window.checks(queue_offset)
        was_cut_off = False if asked else ledger.was_cut_off(half)
        if was_cut_off is None:
            return
        if was_cut_off:
            ledger.close([queue_offset])
            return
        settings = self._broker.settings
        checks = stored_checks(half) + asked
        age_s = ledger.age_s(half)
        reserved_s = settings.store.file_reserved_time * _HOUR_S
        if checks >= settings.broker.transaction_check_max or age_s > reserved_s:
            self._give_up(half, checks)
            return
        immune_s = immunity_s(half, settings.broker.transaction_time_out / 1000)
        if age_s <= immune_s:
            window.wait_until(queue_offset, ledger.now + min(immune_s, reserved_s) - age_s)
            return
        window.count_check(queue_offset)
        self._ask(half, checks + 1)

    def _note_unreadable(self, queue_offset: int) -> None:
        """Take a half message for lost that is damaged, or that many rounds could not read.

        Where only its queue is damaged, its producer may end it meanwhile.
        """
        ledger, rounds = self._ledger, self._unreadable.get(queue_offset, 0) + 1
        self._unreadable[queue_offset] = rounds
        checks_max = self._broker.settings.broker.transaction_check_max
        if ledger.is_damaged(queue_offset) or rounds > checks_max:
            del self._unreadable[queue_offset]
            _log.warning("half message not readable queue_offset=%d: it is lost", queue_offset)
            self._counters.lost += 1
            ledger.close([queue_offset])

    def _ask(self, half: MessageExt, checks: int) -> None:
        connection = self._askers.choose(half)
        if connection is None:
            self._counters.checks_unsent += 1
            return
        name = self._broker.settings.broker.broker_name
        connection.send_oneway(check_request(half, checks, name))
        self._counters.checks_sent += 1

    def _give_up(self, half: MessageExt, checks: int) -> None:
        """Keep a half message where operators look for it; on a full disk the next round tries."""
        try:
            if self._broker.topics.create_check_max_time_topic() is not None:
                # It is being made; the next round finds it, or begins once more.
                return
        except BrokerError as error:
            _log.warning("a half message cannot be given up yet: %s", error.remark)
            return
        message = given_up_message(half, checks)
        self._broker.store.put_messages([message])
        if message.status != PutStatus.PUT_OK:
            self._broker.stats.record_put_failed()
            return
        self._broker.stats.record_put(message.topic, 1, message.size_bytes)
        self._counters.given_up += 1
        self._ledger.close([half.queue_offset])
