"""Ends of transactions: 37 END_TRANSACTION, 323 RESUME_CHECK_HALF_MESSAGE.

Source: apache/rocketmq broker/processor/EndTransactionProcessor.java and AdminBrokerProcessor.java
(resumeCheckHalfMessage) @ rocketmq-all-5.3.3.
"""

from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import refuse_on_slave
from mailboat.broker.transactions import EndRequest
from mailboat.errors import BrokerError
from mailboat.model.message_id import decode_offset_message_id
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
    ) -> RemotingCommand | None:
        """Commit or roll back a half message; a producer that does not know yet is asked later."""
        if not self._broker.is_leading:
            # What RocketMQ answers; nobody reads it, and the master asks for the outcome itself.
            raise BrokerError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "the broker is slave mode, so END_TRANSACTION is forbidden",
            )
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
        self._broker.transactions.end(request)
        return None

    def resume_check(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Ask again about a half message that was given up; its offset message id names it."""
        refuse_on_slave(self._broker)
        place = decode_offset_message_id(required_str(command, "msgId"))
        self._broker.transactions.resume(place.physical_offset)
        return command.response(ResponseCode.SUCCESS)
