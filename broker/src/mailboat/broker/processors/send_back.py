"""Messages that a consumer sends back because it could not handle them.

    36 CONSUMER_SEND_MSG_BACK    45 GET_ALL_DELAY_OFFSET

The message waits in SCHEDULE_TOPIC_XXXX and comes again in the group's %RETRY% topic, each time a
level later, until it was tried often enough; then it goes into the group's %DLQ% topic.

Source: apache/rocketmq broker/processor/AbstractSendMessageProcessor.java (consumerSendMsgBack) and
AdminBrokerProcessor.java (getAllDelayOffset) @ rocketmq-all-5.3.3.
"""

from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.record_reads import record_at
from mailboat.broker.retry import FIRST_LEVEL
from mailboat.broker.stored_message import inner_of, stored_form
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, dlq_topic
from mailboat.model.properties import PropertyName
from mailboat.model.record import decode_record
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import Perm
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_int32,
    required_int,
    required_int32,
    required_str,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.store.message_inner import MessageInner, PutStatus

_INT32_MAX: Final = 2**31 - 1
# No consumer can have got a message of these.
_UNREADABLE: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC})


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = SendBackProcessor(controller)
    dispatcher.register(RequestCode.CONSUMER_SEND_MSG_BACK, processor.send_back)
    dispatcher.register(RequestCode.GET_ALL_DELAY_OFFSET, processor.delay_offsets)


class SendBackProcessor:
    """Stores what was sent back."""

    def __init__(self, broker: BrokerContext) -> None:
        """Store in the log of `broker`."""
        self._broker = broker

    def delay_offsets(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return how far each delay level is delivered."""
        return command.response(ResponseCode.SUCCESS, body=self._broker.schedule.progress.encode())

    async def send_back(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Store a message again, for another try or as a dead letter."""
        self._broker.refuse_messages()
        name = required_str(command, "group")
        if self._broker.quotas is not None:
            self._broker.quotas.refuse_group(command.asked_by, name)
        group = self._broker.retry.group(name, connection.peer_address)
        physical_offset = required_int(command, "offset")
        level = required_int32(command, "delayLevel")
        config = self._broker.settings.broker
        if not config.broker_permission & Perm.WRITE:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_name}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            return command.response(ResponseCode.SUCCESS)
        message = await self._look(physical_offset, connection.peer_address)
        inner = await self._next_try(command, group, message, level)
        self._broker.store.put_messages([inner])
        self._check(inner)
        counts = self._broker.retry.counts
        if inner.topic == SCHEDULE_TOPIC:
            counts.sent_back += 1
        else:
            counts.dead_letters += 1
        self._broker.stats.record_put(inner.topic, 1, inner.size_bytes)
        topic = message.properties.get(PropertyName.RETRY_TOPIC, message.topic)
        if self._broker.topics.select(topic) is None:  # Any producer can say that.
            topic = message.topic
        self._broker.stats.record_sent_back(topic, name)
        del message, inner  # Bodies are not to be kept for as long as a disk hangs.
        await self._flushed()
        return command.response(ResponseCode.SUCCESS)

    async def _look(self, physical_offset: int, host: str) -> MessageExt:
        record = await record_at(self._broker, physical_offset, host)
        message = None if record is None else decode_record(record, verify=False)[0]
        if message is None or message.topic in _UNREADABLE:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical_offset}"
            )
        return message

    async def _next_try(
        self,
        command: RemotingCommand,
        group: SubscriptionGroupConfig,
        message: MessageExt,
        level: int,
    ) -> MessageInner:
        """Make the message to store."""
        retry = self._broker.retry
        asked = None
        if command.ext_fields.get("maxReconsumeTimes") is not None:
            asked = optional_int32(command, "maxReconsumeTimes", 0)
        properties = dict(message.properties)
        properties.setdefault(PropertyName.RETRY_TOPIC, message.topic)
        properties.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[PropertyName.WAIT] = "false"
        limit = retry.max_times(group, command.version, asked)
        is_dead = level < 0 or message.reconsume_times >= limit
        if is_dead:
            making = retry.make_dead_letter_topic(group.group_name)
            if making is not None:
                await making.wait()
            place = dlq_topic(group.group_name), 0
        else:
            place = retry.retry_queue(group)
        inner = inner_of(message, *place, properties)
        # A producer may have begun with any number.
        times = max(message.reconsume_times, 0)
        inner.reconsume_times = min(times + 1, _INT32_MAX)
        inner.prepared_transaction_offset = 0
        if is_dead:
            properties[PropertyName.DELAY] = "0"
            inner.properties = stored_form(properties)
            return inner
        level = level or FIRST_LEVEL + times
        return self._broker.schedule.park(inner, properties, level)

    def _check(self, inner: MessageInner) -> None:
        """Refuse where the store did."""
        if inner.status == PutStatus.PUT_OK:
            return
        self._broker.stats.record_put_failed()
        store = self._broker.store
        if inner.status == PutStatus.MESSAGE_ILLEGAL:
            reason = "it has become too large with what a retry adds to its properties"
        elif inner.status == PutStatus.FLUSH_DISK_TIMEOUT:
            raise BrokerError(ResponseCode.FLUSH_DISK_TIMEOUT, "it is not known whether it is kept")
        else:
            reason = store.refusal() or store.commit_log.no_room or "the broker is closing"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the message is not taken back: {reason}")

    async def _flushed(self) -> None:
        """Wait until what was stored is as safe as was asked for."""
        store = self._broker.store
        if not store.holds_back:
            return
        if code := await self._broker.flush.settled():
            raise BrokerError(
                code,
                "the flush is not known to be done; the message may come again or not",
            )
