"""309 CONSUME_MESSAGE_DIRECTLY: an administrator has one message consumed by a chosen member.

The handler gets the message as if it had just come; offsets and retries are not touched, whatever
becomes of it.

Source: apache/rocketmq client/impl/ClientRemotingProcessor.java (consumeMessageDirectly).
"""

import time
from collections.abc import Mapping

from mailboat.client.handler_runner import ConsumeLater, Handler, HandlerRunner
from mailboat.client.record_decoder import decode_messages
from mailboat.client.retries import restore_topic
from mailboat.errors import BrokerError, CorruptRecordError
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand, required_str
from mailboat.protocol.consume_directly import ConsumeResult, encode_direct_result
from mailboat.remoting.connection import Connection


class ConsumeDirectlyProcessor:
    """Runs the handlers of one group for administrators."""

    __slots__ = ("_group", "_order", "_runner")

    def __init__(
        self, group: str, handlers: Mapping[str, Handler], timeout_s: float, *, order: bool
    ) -> None:
        """Run `handlers`; `order` is what administrators are told of the group."""
        self._group = group
        self._order = order
        self._runner = HandlerRunner(handlers, timeout_s)

    async def process(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Consume the message in the body and answer how it went."""
        group = required_str(command, "consumerGroup")
        if group != self._group:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"group {group} has no consumer in this client"
            )
        try:
            (message,) = decode_messages(command.body)
        except (CorruptRecordError, ValueError) as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the body is not one message: {error}"
            ) from error
        restore_topic(message)
        started_s = time.monotonic()
        raised = await self._runner.run([message])
        body = encode_direct_result(
            _result(raised),
            order=self._order,
            remark=None if raised is None else repr(raised),
            spent_ms=int((time.monotonic() - started_s) * 1000),
        )
        return command.response(ResponseCode.SUCCESS, body=body)


def _result(error: Exception | None) -> ConsumeResult:
    if error is None:
        return ConsumeResult.SUCCESS
    if isinstance(error, ConsumeLater):
        return ConsumeResult.LATER
    return ConsumeResult.THROW_EXCEPTION
