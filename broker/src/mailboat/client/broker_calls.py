"""One function for each request that a producer or consumer sends to a broker.

Source: apache/rocketmq client/impl/MQClientAPIImpl.java.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand, optional_int, required_int
from mailboat.remoting.client import RemotingClient

REQUEST_TIMEOUT_S: Final = 3.0
# Changes are answered once they are on the broker's disk, which may be slow.
CHANGE_TIMEOUT_S: Final = 15.0
_MAX_REMARK: Final = 1000


async def call(
    remoting: RemotingClient,
    address: str,
    code: int,
    ext_fields: dict[str, ExtValue] | None = None,
    body: bytes = b"",
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> RemotingCommand:
    """Send a request and return its answer, which is SUCCESS.

    Raises:
        BrokerError: any other response code.
        RemotingError: no answer; the outcome is unknown.
    """
    command = RemotingCommand.request(code, ext_fields, body)
    response = await remoting.request(address, command, timeout_s)
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError(response.code, response.remark or "")
    return response


async def change(
    remoting: RemotingClient,
    address: str,
    code: int,
    ext_fields: dict[str, ExtValue] | None = None,
    body: bytes = b"",
) -> None:
    """Have a broker change what it keeps on its disk, and wait until it has; raises as `call`."""
    await call(remoting, address, code, ext_fields, body, timeout_s=CHANGE_TIMEOUT_S)


class GroupPosition(NamedTuple):
    """Where a group is in a queue: its stored offset, None where it has none.

    `end` is the queue's end in the moment of a question that found no offset. Only brokers of ours
    say it; with others whatever is stored before the next question is taken for older.
    """

    stored: int | None
    end: int | None = None


async def query_consumer_offset(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue
) -> GroupPosition:
    """Return where a group is in a queue."""
    fields: dict[str, ExtValue] = {
        "consumerGroup": group,
        # An unset offset is not 0: without this, brokers answer 0 for young queues whatever a new
        # group asked for. Brokers before 5.0 do not know the field.
        "setZeroIfNotFound": False,
        **_queue_fields(queue),
    }
    command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    response = await remoting.request(address, command, REQUEST_TIMEOUT_S)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        end = optional_int(response, "maxOffset", -1)
        return GroupPosition(None, None if end < 0 else end)
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError(response.code, response.remark or "")
    queue_offset = required_int(response, "offset")
    return GroupPosition(None if queue_offset < 0 else queue_offset)


async def update_consumer_offset(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, commit_offset: int
) -> None:
    """Store a group's offset of a queue and wait for the answer."""
    fields = {"consumerGroup": group, "commitOffset": commit_offset, **_queue_fields(queue)}
    await call(remoting, address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)


async def min_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """Return the first offset that a queue still holds."""
    response = await call(remoting, address, RequestCode.GET_MIN_OFFSET, _queue_fields(queue))
    return required_int(response, "offset")


async def max_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """Return the offset that the next message of a queue gets."""
    response = await call(remoting, address, RequestCode.GET_MAX_OFFSET, _queue_fields(queue))
    return required_int(response, "offset")


async def search_offset(
    remoting: RemotingClient, address: str, queue: MessageQueue, timestamp_ms: int
) -> int:
    """Return the offset of the first message stored at or after a time, else the end."""
    fields = {**_queue_fields(queue), "timestamp": timestamp_ms}
    response = await call(remoting, address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
    return required_int(response, "offset")


async def earliest_store_time_ms(
    remoting: RemotingClient, address: str, queue: MessageQueue
) -> int:
    """Return when the first message of a queue was stored, -1 if it is empty."""
    fields = _queue_fields(queue)
    response = await call(remoting, address, RequestCode.GET_EARLIEST_MSG_STORETIME, fields)
    return required_int(response, "timestamp")


async def send_message_back(
    remoting: RemotingClient,
    address: str,
    group: str,
    message: MessageExt,
    *,
    broker_name: str,
    delay_level: int,
    max_reconsume_times: int,
) -> None:
    """Ask the broker to deliver a message again later.

    Delay level 0 lets the broker choose (3 + times consumed), -1 makes it a dead letter at once.
    """
    fields: dict[str, ExtValue] = {
        "offset": message.physical_offset,
        "group": group,
        "delayLevel": delay_level,
        "originMsgId": message.message_id,
        "originTopic": message.topic,
        "unitMode": False,
        "maxReconsumeTimes": max_reconsume_times,
        "bname": broker_name,
    }
    await call(remoting, address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout_s=5.0)


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """Which half message END_TRANSACTION is about; the offsets are the half message's."""

    group: str
    topic: str
    broker_name: str | None
    queue_offset: int
    physical_offset: int
    message_id: str
    transaction_id: str
    from_check: bool = False

    def to_command(self, commit_or_rollback: int, error: BaseException | None) -> RemotingCommand:
        """Return the one-way request that tells how the transaction ended."""
        fields: dict[str, ExtValue] = {
            "topic": self.topic,
            "producerGroup": self.group,
            "tranStateTableOffset": self.queue_offset,
            "commitLogOffset": self.physical_offset,
            "commitOrRollback": commit_or_rollback,
            "fromTransactionCheck": self.from_check,
            "msgId": self.message_id,
            "transactionId": self.transaction_id,
            "bname": self.broker_name,
        }
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, fields, oneway=True)
        if error is not None:
            # Brokers log it with the answer UNKNOWN.
            command.remark = f"{type(error).__name__}: {error}"[:_MAX_REMARK]
        return command


async def unregister_client(
    remoting: RemotingClient,
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
) -> None:
    """Tell a broker that this client leaves a group."""
    fields: dict[str, ExtValue] = {
        "clientID": client_id,
        "producerGroup": producer_group,
        "consumerGroup": consumer_group,
    }
    await call(remoting, address, RequestCode.UNREGISTER_CLIENT, fields, timeout_s=1.0)


def _queue_fields(queue: MessageQueue) -> dict[str, ExtValue]:
    return {"topic": queue.topic, "queueId": queue.queue_id, "bname": queue.broker_name}
