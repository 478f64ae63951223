"""Ends of transactions: 37 END_TRANSACTION, 323 RESUME_CHECK_HALF_MESSAGE.

Source: apache/rocketmq broker/processor/EndTransactionProcessor.java and AdminBrokerProcessor.java
(resumeCheckHalfMessage) @ rocketmq-all-5.3.3.
"""

from collections.abc import Awaitable

from mailboat.broker.cold_looks import Looks
from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import refuse_on_slave
from mailboat.broker.record_reads import record_at
from mailboat.broker.transactions import EndRequest
from mailboat.errors import BrokerError
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.names import HALF_TOPIC
from mailboat.model.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_bool,
    required_int,
    required_int32,
    required_str,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.turns import in_turns


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = EndTransactionProcessor(controller)
    dispatcher.register(RequestCode.END_TRANSACTION, processor.end_transaction)
    dispatcher.register(RequestCode.RESUME_CHECK_HALF_MESSAGE, processor.resume_check)


class EndTransactionProcessor:
    """Hands ends of transactions to the service that stores them."""

    def __init__(self, broker: BrokerContext) -> None:
        """End the transactions of `broker`."""
        self._broker = broker

    def end_transaction(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[None] | None:
        """Commit or roll back a half message; a producer that does not know yet is asked later."""
        self._refuse_on_slave()
        state = required_int32(command, "commitOrRollback")
        request = EndRequest(
            connection,
            command.without_content(),
            required_str(command, "producerGroup"),
            required_int(command, "tranStateTableOffset"),
            required_int(command, "commitLogOffset"),
            state == TRANSACTION_COMMIT,
            optional_bool(command, "fromTransactionCheck"),
        )
        if state == TRANSACTION_NONE:
            return command.response(ResponseCode.SUCCESS)
        if state not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"request END_TRANSACTION: field 'commitOrRollback' is {state}; "
                f"{TRANSACTION_COMMIT} commits, {TRANSACTION_ROLLBACK} rolls back, "
                f"{TRANSACTION_NONE} leaves it open",
            )
        warming, queues = self._broker.store.warming, self._broker.store.queues
        is_hot = warming.is_hot(queues.get(HALF_TOPIC, 0), request.queue_offset)
        if not (is_hot and warming.is_hot_at(request.physical_offset)):
            return self._end_cold(request)
        self._broker.transactions.end(request)
        return None

    async def _end_cold(self, request: EndRequest) -> None:
        """Have the half message read before its end is stored: only the disk may have it."""
        host = request.connection.peer_address
        await self._warm(request.physical_offset, host)
        queue = self._broker.store.queues.get(HALF_TOPIC, 0)
        await in_turns(Looks(self._broker, host).warm(queue, request.queue_offset))
        self._refuse_on_slave()  # Another one may lead since.
        self._broker.transactions.end(request)

    def _refuse_on_slave(self) -> None:
        if not self._broker.is_leading:
            # What RocketMQ answers; nobody reads it, and the master asks for the outcome itself.
            raise BrokerError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "the broker is slave mode, so END_TRANSACTION is forbidden",
            )

    async def resume_check(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Ask again about a half message that was given up; its offset message id names it."""
        refuse_on_slave(self._broker)
        place = decode_offset_message_id(required_str(command, "msgId"))
        await self._warm(place.physical_offset, connection.peer_address)
        refuse_on_slave(self._broker)
        self._broker.transactions.resume(place.physical_offset)
        return command.response(ResponseCode.SUCCESS)

    async def _warm(self, physical_offset: int, host: str) -> None:
        """Have what lies at a place of the log read by another thread where it may be cold."""
        if not self._broker.store.warming.is_hot_at(physical_offset):
            await record_at(self._broker, physical_offset, host)
