"""The question to a producer: how did the transaction behind this half message end?

Goes as 39 CHECK_TRANSACTION_STATE to one member of the producer group, which answers with an
END_TRANSACTION that says where it comes from. The body is the half message as a record, with topic
and queue as the producer knows them.

Source: apache/rocketmq broker/transaction/AbstractTransactionalMessageCheckListener.java
(sendCheckMessage), broker/client/ProducerManager.java (getAvailableChannel) and
common/message/MessageDecoder.java (encode).
"""

from mailboat.broker.membership import ProducerManager
from mailboat.broker.stored_message import stored_form
from mailboat.broker.transactions.records import real_queue_id, real_topic, with_checks
from mailboat.model.message import MessageExt
from mailboat.model.names import HALF_TOPIC
from mailboat.model.properties import PropertyName
from mailboat.model.record import FIXED_BYTES, HEAD, IPV6_EXTRA_BYTES, MAGIC_V1, MAGIC_V2, TAIL
from mailboat.model.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection


def check_request(half: MessageExt, checks: int, broker_name: str) -> RemotingCommand:
    """Make the question about a half message; `checks` counts this one."""
    return RemotingCommand.request(
        RequestCode.CHECK_TRANSACTION_STATE,
        {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset,
            "msgId": half.unique_key,
            "transactionId": half.unique_key,
            "offsetMsgId": half.offset_message_id,
            "bname": broker_name,
        },
        _record(half, checks),
        oneway=True,
    )


def _record(half: MessageExt, checks: int) -> bytes:
    """Return the record of a half message as if it lay in its real topic."""
    topic = real_topic(half).encode()
    properties = stored_form(with_checks(half, checks))
    is_long = len(topic) > 127
    size = FIXED_BYTES + is_long + len(half.body) + len(topic) + len(properties)
    for bit in (BORN_HOST_V6, STORE_HOST_V6):
        size += IPV6_EXTRA_BYTES if half.sys_flag & bit else 0
    head = HEAD.pack(
        size,
        MAGIC_V2 if is_long else MAGIC_V1,
        half.body_crc,
        real_queue_id(half),
        half.flag,
        half.queue_offset,
        half.physical_offset,
        half.sys_flag,
        half.born_timestamp_ms,
    )
    tail = TAIL.pack(half.reconsume_times, half.prepared_transaction_offset, len(half.body))
    return b"".join(
        (
            head,
            half.born_host,
            half.store_timestamp_ms.to_bytes(8, "big"),
            half.store_host,
            tail,
            half.body,
            len(topic).to_bytes(2 if is_long else 1, "big"),
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


class Askers:
    """Chooses whom to ask: the members of a producer group in turn."""

    def __init__(self, producers: ProducerManager) -> None:
        """Choose among the connected producers."""
        self._producers = producers
        self._turn = 0

    def choose(self, half: MessageExt) -> Connection | None:
        """Return a connection of the half message's group that takes a request, None for none."""
        group = half.properties.get(PropertyName.PRODUCER_GROUP, "")
        members = self._producers.groups.get(group)
        connections = [] if members is None else members.connections
        self._turn += 1
        for place in range(len(connections)):
            connection = connections[(self._turn + place) % len(connections)]
            if not connection.is_closed and not connection.is_write_paused:
                return connection
        return None
