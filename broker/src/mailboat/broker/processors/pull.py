"""Pulls: codes 11 and 361.

Source: apache/rocketmq broker/processor/PullMessageProcessor.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from mailboat.broker.blocking_calls import READS_MAX
from mailboat.broker.cold_reads import ColdReads
from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import refuse_disabled_broadcast, require_own_name
from mailboat.broker.processors.offset_reset import take_reset
from mailboat.broker.processors.pull_waits import (
    LATER,
    ONEWAY_BIT,
    Answer,
    Wait,
    WaitForFilter,
    WaitForMessage,
    WaitForQuota,
    WaitForRoom,
    Wanted,
    command_of,
    refused,
    text_bytes,
    unreadable,
)
from mailboat.broker.pull_request_hold import PullRequestHoldService
from mailboat.broker.quotas.user_use import UserUse
from mailboat.broker.sql_filters import check_expression_type
from mailboat.config import BrokerConfig
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.filtering.property_filter import PropertyFilter
from mailboat.filtering.tag_filter import tags_codes
from mailboat.model.names import RETRY_PREFIX, TRANSACTIONS_GROUP
from mailboat.model.subscription import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from mailboat.model.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from mailboat.model.topic import Perm
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.frame import SERIALIZE_JSON
from mailboat.protocol.send_header import PullFields, PullRequest, encode_pull_response_header
from mailboat.remoting.connection import Connection
from mailboat.store.lookup import GetResult, GetStatus, units_to_look_at
from mailboat.store.record_source import Fetched, Limits, RecordSource

# A read of messages in memory that a property filter takes is bounded by time, not by their size.
_UNBOUNDED: Final = 1 << 62
# Messages read from the disk for a property filter that may take few of them.
_FILTERED_FETCH: Final = 800

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


# A slave sends readers who have everything back to its master, but not more often than this: who
# does not know that master yet would ask again at once.
_SEND_BACK_AFTER_S: Final = 1.0

# A pull that may not wait for messages waits so long for its quota, and any other no longer than
# clients wait for an answer.
_QUOTA_WAIT_S: Final = 3.0
_QUOTA_WAIT_MAX_S: Final = 15.0

_Until: TypeAlias = Callable[[Callable[[], None]], None]


def _now(begin: Callable[[], None]) -> None:
    begin()


class PullMessageProcessor:
    """Reads a queue for a consumer, now or when something arrives."""

    def __init__(self, broker: BrokerContext, holds: PullRequestHoldService) -> None:
        """Work for one broker."""
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics.table
        self._holds = holds
        self._sql_filters = broker.sql_filters
        self._cold_reads = ColdReads()
        config = broker.settings.store
        self._max_bytes = config.max_transfer_bytes_on_message_in_memory
        self._max_count = config.max_transfer_count_on_message_in_memory
        self._long_polling = broker.settings.broker.long_polling_enable
        self._short_polling_s = broker.settings.broker.short_polling_time_mills / 1000
        self._may_read_slaves = broker.settings.broker.slave_read_enable
        self.is_slave = False
        """Whether this broker follows another one, and serves only what is confirmed to it."""

        self.hears_master: Callable[[], bool] = lambda: False
        """Tells whether a slave's master lives."""

        self.recheck: Callable[[PullRequest, str], None] | None = None
        """Raises BrokerError where whoever asked from an address may not read any more; None where
        nobody is asked who it is."""

        self._quotas = broker.quotas

    def configure(self, config: BrokerConfig) -> None:
        """Follow other settings."""
        self._may_read_slaves = config.slave_read_enable

    def pull(self, connection: Connection, request: PullRequest) -> Answer:
        """Return the answer, nothing when it comes later or nobody waits for it."""
        fields = request.fields
        use = self._use(request)
        try:
            if use is not None and self._quotas is not None:
                self._quotas.refuse_group(request.asked_by, fields.consumer_group)
            wanted = self._check(fields, connection.peer_address)
            if isinstance(wanted.what, str) and self._find_filter(fields, wanted.what) is None:
                self._pull_when_compiled(connection, request, wanted)
                return LATER
        except BrokerError as error:
            return refused(request, error)
        may_commit = not self.is_slave and fields.consumer_group != TRANSACTIONS_GROUP
        if fields.sys_flag & PULL_COMMIT_OFFSET and may_commit:
            # Beyond the end lies what another log held: to keep it would skip what comes.
            if fields.commit_offset <= self._store.max_offset(fields.topic, fields.queue_id):
                self._broker.offsets.commit(
                    fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset
                )
        if use is not None and use.fetch_wait_s() > 0.0:
            return self._wait_for_quota(connection, request, wanted, use)
        if not connection.has_room():
            return self._put_off(connection, request, wanted, _now)
        return self._read_now(connection, request, wanted)

    def _use(self, request: PullRequest) -> UserUse | None:
        """Return what whoever asked has used, None where nothing is bounded."""
        return None if self._quotas is None else self._quotas.use_of(request.asked_by)

    def arrivals(self) -> PullRequestHoldService:
        """Answer pulls that wait for what arrives inside, once, at the end."""
        return self._holds

    def _answer(
        self,
        connection: Connection,
        request: PullRequest,
        wanted: Wanted,
        source: RecordSource | None = None,
    ) -> Answer:
        """Answer from memory, or from what was read from the disk."""
        fields = request.fields
        try:
            result = self._get(request, fields.queue_offset, wanted.what, source)
        except BrokerError as error:
            return refused(request, error)
        except OSError as error:
            return unreadable(request, error)
        if result.status == GetStatus.FOUND:
            return self._found(request, result, is_slow=source is not None)
        if self.is_slave:
            result = self._as_a_slave(fields, result)
        if fields.sys_flag & PULL_SUSPEND and result.status in (
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
        ):
            if result.status == GetStatus.OFFSET_OVERFLOW_ONE or fields.queue_offset == 0:
                return self._hold(connection, request, wanted)
        return self._nothing(request, result)

    def _as_a_slave(self, fields: PullFields, result: GetResult) -> GetResult:
        """Move no reader for what this slave does not have: its master may.

        Where the master is gone, what is gone here is gone.
        """
        is_low = result.status == GetStatus.OFFSET_TOO_SMALL
        is_high = result.status == GetStatus.OFFSET_OVERFLOW_BADLY
        is_empty = result.status == GetStatus.NO_MESSAGE_IN_QUEUE
        if is_high or is_empty or (is_low and self.hears_master()):
            return result._replace(
                status=GetStatus.OFFSET_OVERFLOW_ONE, next_offset=fields.queue_offset
            )
        return result

    def _pull_cold(self, connection: Connection, request: PullRequest, wanted: Wanted) -> Answer:
        """Read from the disk away from the loop, then answer with what was read."""
        fields = request.fields
        if not self._broker.store_threads.can_read:
            return refused(
                request,
                BrokerError(
                    ResponseCode.SYSTEM_BUSY,
                    f"[OVERLOAD]{READS_MAX} pulls wait for the disk, try again later",
                ),
            )

        if not self._cold_reads.begin(connection):
            later = partial(self._cold_reads.wait, connection)
            return self._put_off(connection, request, wanted, later)

        use = self._use(request)
        taken = self._reserved(use, fields)

        def read(source: Fetched | None, error: BaseException | None) -> None:
            try:
                if use is not None:
                    use.given_back(*taken)
                if not connection.is_closed:
                    self._answer_cold(connection, request, wanted, source, error)
            finally:
                self._cold_reads.end(connection)

        if isinstance(wanted.what, str):
            limits = Limits(_FILTERED_FETCH, _FILTERED_FETCH, self._max_bytes, None)
        else:
            count = self._count(fields)
            limits = Limits(
                units_to_look_at(count, wanted.what), count, self._max_bytes, wanted.what
            )
        queue = self._store.queues.get(fields.topic, fields.queue_id)
        self._store.warming.fetch(queue, fields.queue_offset, limits, read)
        return LATER

    def _answer_cold(
        self,
        connection: Connection,
        request: PullRequest,
        wanted: Wanted,
        source: Fetched | None,
        error: BaseException | None,
    ) -> None:
        """Answer with what was read; what there is no room for now is read again later."""
        if error is not None and not isinstance(error, OSError):
            raise error
        if self._is_outdated(request.fields, wanted):
            answer = self._ask_again(request)
        elif not connection.has_room():
            answer = self._put_off(connection, request, wanted, _now)
        elif error is None or isinstance(error, FileNotFoundError):
            # A file that went meanwhile took these messages with it.
            answer = self._answer(connection, request, wanted, source)
        else:
            answer = unreadable(request, error)
        if answer:
            connection.write_pieces(answer)

    def _reserved(self, use: UserUse | None, fields: PullFields) -> tuple[int, int]:
        """Take what a pull that is read later may have, messages and bytes; return how much.

        Others must not be let through meanwhile for the same.
        """
        if use is None:
            return 0, 0
        room = use.room()
        taken = min(self._count(fields), room.messages), min(self._max_bytes, room.size_bytes)
        use.fetched(*taken)
        return taken

    def _put_off(
        self, connection: Connection, request: PullRequest, wanted: Wanted, until: _Until
    ) -> Answer:
        """Read later: once `until` has called what it gets, and there is room for an answer."""
        size, use = text_bytes(request.fields, wanted.what), self._use(request)
        held = WaitForRoom(
            connection, size, processor=self, request=request, wanted=wanted, count=use
        )
        try:
            try_again = self._holds.keep(held)
        except BrokerError as error:
            return refused(request, error)
        held.use, held.taken = use, self._reserved(use, request.fields)
        until(try_again)
        return LATER

    def _wait_for_quota(
        self, connection: Connection, request: PullRequest, wanted: Wanted, use: UserUse
    ) -> Answer:
        """Read once the quota of whoever asked allows for an answer.

        A client that is told to ask again would do so at once, or after 20 ms, or after 3 s,
        whatever it is told by: to wait is what all of them do in good order.
        """
        fields = request.fields
        suspend_s = fields.suspend_timeout_millis / 1000
        if not fields.sys_flag & PULL_SUSPEND or suspend_s <= 0:
            suspend_s = _QUOTA_WAIT_S
        held = WaitForQuota(
            connection,
            text_bytes(fields, wanted.what),
            processor=self,
            request=request,
            wanted=wanted,
            count=use,
            use=use,
        )
        try:
            self._holds.keep(held, min(suspend_s, _QUOTA_WAIT_MAX_S))
        except BrokerError as error:
            return refused(request, error)
        use.fetch_delayed()
        use.turns.add(held, self._holds.try_again)
        return LATER

    def is_turn_of(self, held: Wait, use: UserUse, is_late: bool) -> bool:
        """Tell whether a pull may be answered now; one whose time is up is told to ask again."""
        use.turns.discard(held)
        if use.fetch_wait_s() <= 0.0:
            return True
        if is_late:
            held.write(self._ask_again(held.request))
        else:
            use.turns.add(held, self._holds.try_again)
        return False

    def _ask_again(self, request: PullRequest) -> Answer:
        """Return the answer to a pull whose time is up before its quota allows for another."""
        fields = request.fields
        low = self._store.min_offset(fields.topic, fields.queue_id)
        high = self._store.max_offset(fields.topic, fields.queue_id)
        status = GetStatus.NO_MATCHED_MESSAGE
        result = GetResult(status, fields.queue_offset, low, high, [], 0, 0)
        return self._generic(request, ResponseCode.PULL_RETRY_IMMEDIATELY, result)

    def pull_again(self, held: Wait) -> Answer:
        """Read what was put off; return the answer, nothing when it comes later."""
        if self._is_outdated(held.request.fields, held.wanted):
            return self._ask_again(held.request)
        return self._read_now(held.connection, held.request, held.wanted)

    def _is_outdated(self, fields: PullFields, wanted: Wanted) -> bool:
        """Tell whether the group has subscribed anew since a pull came that goes by its word.

        Its client asks again at once, from where it was: what was passed over may be wanted now.
        """
        if wanted.by is None:
            return False
        consumers = self._broker.consumers
        return consumers.find_subscription(fields.consumer_group, fields.topic) is not wanted.by

    def _read_now(self, connection: Connection, request: PullRequest, wanted: Wanted) -> Answer:
        fields = request.fields
        queue = self._store.queues.get(fields.topic, fields.queue_id)
        if self._store.warming.is_hot(queue, fields.queue_offset):
            return self._answer(connection, request, wanted)
        return self._pull_cold(connection, request, wanted)

    def _pull_when_compiled(
        self, connection: Connection, request: PullRequest, wanted: Wanted
    ) -> None:
        """Begin anew once the expression is compiled; raise BrokerError if too many wait."""
        expression = wanted.what
        assert isinstance(expression, str)
        held = WaitForFilter(
            connection,
            text_bytes(request.fields, expression),
            processor=self,
            request=request,
            wanted=wanted,
            count=self._use(request),
        )
        # What is kept first would be kept for good where this refuses.
        done = partial(self._holds.try_again, held)
        self._sql_filters.compile(expression, done, connection.peer_address)
        self._holds.keep(held)

    # -- checks ---------------------------------------------------------------------------------

    def _check(self, fields: PullFields, asker: str) -> Wanted:
        """Refuse what must not be read from an address; return what is wanted."""
        broker = self._broker
        topic, group = fields.topic, fields.consumer_group
        config = broker.settings.broker
        if self.is_slave and not self._may_read_slaves:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"this broker is a slave of {config.broker_name} and may not be read "
                "(slaveReadEnable=false); its master is where the name server says",
            )
        if fields.bname != config.broker_name:
            require_own_name(broker, fields.bname)
        if not config.broker_permission & Perm.READ:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker {config.broker_name} pulling message is forbidden: its "
                "brokerPermission does not include read",
            )
        group_config = broker.groups.find(group, asker)
        if group_config is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, and is not made: "
                f"{broker.groups.why_not_made(group, asker)}",
            )
        if not group_config.consume_enable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}"
            )
        topic_config = self._topics.get(topic)
        if topic_config is None:
            if topic == RETRY_PREFIX + group:
                broker.topics.create_retry_topic(group)
                topic_config = self._topics.get(topic)
            if topic_config is None:
                raise BrokerError(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"topic[{topic}] not exist, apply first please! It is not on this broker.",
                )
        if not topic_config.perm & Perm.READ:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden"
            )
        queue_id = fields.queue_id
        if not 0 <= queue_id < topic_config.read_queue_nums and not (
            queue_id >= 0 and self._store.has_queue(topic, queue_id)
        ):
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic {topic} has the queues 0 to "
                f"{topic_config.read_queue_nums - 1}",
            )
        return self._wanted(fields)

    def _wanted(self, fields: PullFields) -> Wanted:
        """Return what a pull asks for, by its own word or by that of its group's heartbeats.

        Raises:
            BrokerError: it cannot be told what that is, or by no subscription that is new enough.
        """
        by = None
        group, topic = fields.consumer_group, fields.topic
        if fields.sys_flag & PULL_SUBSCRIPTION:
            expression, kind = fields.subscription or SUBSCRIBE_ALL, fields.expression_type
            if kind == EXPRESSION_TAG and expression != SUBSCRIBE_ALL:
                # The Go client says TAG whatever it subscribed to; its heartbeat knows better.
                known = self._broker.consumers.find_subscription(group, topic)
                if known is not None and known.sub_string == expression:
                    kind = known.expression_type
        else:
            by = subscription = self._broker.consumers.find_subscription(group, topic)
            if subscription is None:
                raise BrokerError(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST,
                    f"the consumer's subscription not exist: group {group} has not subscribed to "
                    f"{topic} by a heartbeat",
                )
            refuse_disabled_broadcast(self._broker, group)
            expression, kind = subscription.sub_string, subscription.expression_type
            if subscription.sub_version < fields.sub_version:
                # Its heartbeat is on its way. By what it wanted before, messages would be passed
                # over that it wants now.
                raise BrokerError(
                    ResponseCode.FILTER_DATA_NOT_LATEST
                    if kind == EXPRESSION_SQL92
                    else ResponseCode.SUBSCRIPTION_NOT_LATEST,
                    f"subscription not latest: group {group} has subscribed to {topic} by version "
                    f"{subscription.sub_version}, and the pull is by {fields.sub_version}",
                )
        if kind and kind != EXPRESSION_TAG:
            check_expression_type(kind, self._broker.settings.broker)
            return Wanted(expression, by)
        try:
            return Wanted(tags_codes(expression), by)
        except IllegalMessageError as error:
            raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _find_filter(self, fields: PullFields, expression: str) -> PropertyFilter | None:
        """Return a compiled expression, None when it must be compiled first."""
        try:
            return self._sql_filters.find(expression)
        except BrokerError as error:
            if fields.sys_flag & PULL_SUBSCRIPTION:
                raise
            # What a heartbeat said; RocketMQ has thrown the reason away by now.
            raise BrokerError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong! "
                + error.remark,
            ) from error

    # -- reading --------------------------------------------------------------------------------

    def _count(self, fields: PullFields) -> int:
        return min(max(fields.max_msg_nums, 1), self._max_count)

    def _get(
        self,
        request: PullRequest,
        queue_offset: int,
        wanted: frozenset[int] | str | None,
        source: RecordSource | None = None,
    ) -> GetResult:
        fields = request.fields
        if self._broker.offsets.has_resets and (moved := self._take_reset(fields)):
            return moved
        count, max_bytes = self._count(fields), self._max_bytes
        use = self._use(request)
        if use is not None:
            room = use.room()
            count, max_bytes = min(count, room.messages), min(max_bytes, room.size_bytes)
        if isinstance(wanted, str):
            result = self._get_matching(fields, queue_offset, wanted, source, count, max_bytes)
        else:
            result = self._store.get_message(
                fields.topic, fields.queue_id, queue_offset, count, max_bytes, wanted, source
            )
        if use is not None and result.message_count:
            use.fetched(result.message_count, result.size_bytes)
        return result

    def _take_reset(self, fields: PullFields) -> GetResult | None:
        place = fields.consumer_group, fields.topic, fields.queue_id
        if self.is_slave and self.hears_master() and self._broker.offsets.is_reset(*place):
            # A master that never hears that it is noticed sends the group back again.
            low = self._store.min_offset(fields.topic, fields.queue_id)
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, fields.queue_offset, low, low, [], 0, 0)
        return take_reset(self._broker, fields)

    def _get_matching(
        self,
        fields: PullFields,
        queue_offset: int,
        expression: str,
        source: RecordSource | None,
        count: int,
        max_bytes: int,
    ) -> GetResult:
        topic, queue_id = fields.topic, fields.queue_id
        wanted = self._sql_filters.find(expression)
        if wanted is None:
            # Others were asked for since; the client asks again, and it is compiled again.
            low, high = (
                self._store.min_offset(topic, queue_id),
                self._store.max_offset(topic, queue_id),
            )
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, queue_offset, low, high, [], 0, 0)
        is_hot = self._store.warming.is_hot(self._store.queues.get(topic, queue_id), queue_offset)
        return self._store.get_matching_message(
            topic,
            queue_id,
            queue_offset,
            count,
            max_bytes,
            wanted,
            _UNBOUNDED if is_hot else self._max_bytes,
            source,
        )

    def _hold(self, connection: Connection, request: PullRequest, wanted: Wanted) -> Answer:
        """Let a pull wait for a message; return a refusal if too many do."""
        fields = request.fields
        suspend_s = fields.suspend_timeout_millis / 1000
        if not self._long_polling:
            suspend_s = self._short_polling_s
        if self.is_slave and self.hears_master():
            suspend_s = min(suspend_s, _SEND_BACK_AFTER_S)
        held = WaitForMessage(
            connection,
            text_bytes(fields, wanted.what),
            processor=self,
            request=request,
            wanted=wanted,
            scanned_offset=fields.queue_offset,
            count=self._use(request),
        )
        try:
            self._holds.hold(held, fields.topic, fields.queue_id, suspend_s)
        except BrokerError as error:
            return refused(request, error)
        return LATER

    def look_again(self, held: WaitForMessage, is_late: bool) -> bool:
        """Answer a pull that waits if there is something for it, or if its time is up.

        Returns:
            Whether it was answered; what it has looked at it does not look at again.
        """
        request = held.request
        fields = request.fields
        use = self._use(request)
        if use is not None and not self.is_turn_of(held, use, is_late):
            return is_late
        if self._is_outdated(fields, held.wanted):
            held.write(self._ask_again(request))
            return True
        try:
            result = self._get(request, held.scanned_offset, held.wanted.what)
        except BrokerError as error:
            held.write(refused(request, error))
            return True
        except OSError as error:
            held.write(unreadable(request, error))
            return True
        if self.is_slave and result.status != GetStatus.FOUND:
            result = self._as_a_slave(fields, result)
        if result.status == GetStatus.FOUND:
            answer = self._found(request, result)
        elif (
            result.status == GetStatus.NO_MATCHED_MESSAGE
            and not is_late
            and result.next_offset >= result.max_offset
        ):
            held.scanned_offset = result.next_offset
            return False
        elif is_late or result.status not in (
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
        ):
            if held.scanned_offset > fields.queue_offset and result.status in (
                GetStatus.OFFSET_OVERFLOW_ONE,
                GetStatus.NO_MATCHED_MESSAGE,
            ):
                result = result._replace(status=GetStatus.NO_MATCHED_MESSAGE)
            answer = self._nothing(request, result)
        else:
            return False
        held.write(answer)
        return True

    # -- answers --------------------------------------------------------------------------------

    def _found(self, request: PullRequest, result: GetResult, *, is_slow: bool = False) -> Answer:
        fields = request.fields
        self._broker.stats.record_get(
            fields.topic, fields.consumer_group, result.message_count, result.size_bytes
        )
        self._broker.offsets.record_pull(
            fields.consumer_group, fields.topic, fields.queue_id, result.next_offset
        )
        suggested_id = 0
        if is_slow and self._may_read_slaves:
            # It reads from the disk what a slave may read too.
            group = self._broker.groups.select(fields.consumer_group)
            suggested_id = 0 if group is None else group.which_broker_when_consume_slowly
        if request.serialize_type != SERIALIZE_JSON:
            return self._generic(request, ResponseCode.SUCCESS, result, suggested_id)
        header = encode_pull_response_header(
            request.opaque,
            ResponseCode.SUCCESS,
            next_begin_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            body_size=result.size_bytes,
            suggest_which_broker_id=suggested_id,
        )
        return (header, b"".join(result.slices))

    def _nothing(self, request: PullRequest, result: GetResult) -> Answer:
        fields = request.fields
        self._broker.stats.record_get_miss()
        if result.status == GetStatus.DAMAGED:
            return refused(
                request,
                BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the message at queue offset {result.next_offset} of {fields.topic} queue "
                    f"{fields.queue_id} is damaged or cannot be read; pull from "
                    f"{result.next_offset + 1}, or set skipCorrupt=true on the broker",
                ),
            )
        if result.status == GetStatus.OFFSET_OVERFLOW_BADLY:
            result = self._sent_back(fields, result)
        if result.status == GetStatus.NO_MESSAGE_IN_QUEUE:
            moved = fields.queue_offset != 0
            code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODES[result.status]
        if code == ResponseCode.PULL_NOT_FOUND and self.is_slave and self.hears_master():
            # So stock clients go back to the master, which answer 0 names.
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return self._generic(request, code, result)

    def _sent_back(self, fields: PullFields, result: GetResult) -> GetResult:
        """Send a reader from beyond the end to what its group has committed, if that is known.

        It comes from before the log became shorter, or has read a former topic of this name: then
        all of the new one is new to it. RocketMQ sends it to the end, over what was stored since.
        """
        committed = self._broker.offsets.query(fields.consumer_group, fields.topic, fields.queue_id)
        if result.min_offset <= committed <= result.max_offset:
            return result._replace(next_offset=committed)
        if self._store.is_made_anew(fields.topic):
            return result._replace(next_offset=result.min_offset)
        return result

    def _generic(
        self, request: PullRequest, code: int, result: GetResult, suggested_id: int = 0
    ) -> Answer:
        if request.flag & ONEWAY_BIT:
            return LATER
        fields = {
            "suggestWhichBrokerId": suggested_id,
            "nextBeginOffset": result.next_offset,
            "minOffset": result.min_offset,
            "maxOffset": result.max_offset,
        }
        answer = command_of(request).response(code, ext_fields=fields)
        return (answer.encode_head(result.size_bytes), b"".join(result.slices))
