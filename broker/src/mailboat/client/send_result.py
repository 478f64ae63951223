"""What a producer learns of a message it sent.

Source: apache/rocketmq client/producer/SendResult.java and SendStatus.java.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand, required_int


class SendStatus(Enum):
    """How safely a message is stored; all but SEND_OK are less than the broker was set to give."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS_BY_CODE: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message, or the first one of a batch, is stored.

    `message_id` is the producer's own id (UNIQ_KEY), `offset_message_id` the broker's; a batch has
    both as lists joined by commas. `is_repeated` says that an earlier try was not answered, so that
    a second copy with the same `message_id` may be stored.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    message_queue: MessageQueue
    queue_offset: int
    region: str
    trace_on: bool
    is_repeated: bool = False


def read_send_result(response: RemotingCommand, queue: MessageQueue, message_id: str) -> SendResult:
    """Return what a broker's answer says of a stored message.

    Raises:
        BrokerError: the answer is a refusal.
    """
    status = STATUS_BY_CODE.get(response.code)
    if status is None:
        raise BrokerError(response.code, response.remark or "")
    fields = response.ext_fields
    queue_id = required_int(response, "queueId")
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return SendResult(
        status=status,
        message_id=message_id,
        offset_message_id=fields.get("msgId", ""),
        message_queue=queue,
        queue_offset=required_int(response, "queueOffset"),
        region=fields.get("MSG_REGION", "DefaultRegion"),
        trace_on=fields.get("TRACE_ON") == "true",
    )
