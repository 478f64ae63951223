"""What RocketMQ has and this broker has not, told in one sentence each.

    60, 61  timer messages        400-402   consumption by POP
    355     metadata in RocksDB   513       static topics
    200056  records of POP        902, 903  broker containers

A client or a tool that asks for one of them must learn that it is not there, and a request that
means "leave it as it is" succeeds. Java clients that get an error to 400 balance their queues
themselves.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java and
QueryAssignmentProcessor.java @ rocketmq-all-5.3.3.
"""

from typing import Final

import msgspec

from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import require_topic
from mailboat.errors import BrokerError
from mailboat.model.names import RETRY_PREFIX
from mailboat.protocol.admin_bodies import GroupForbidden, encode_group_forbidden
from mailboat.protocol.bodies import decode_request, encode_body
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, optional_str, required_str
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Processor

_NO_STATIC_TOPICS: Final = (
    "static topics are not supported: a topic's queues stay on the broker that made them"
)
_NO_POP: Final = (
    "consumption by POP is not supported: consumers pull, and balance queues themselves"
)

_ABSENT: Final = {
    RequestCode.GET_TIMER_CHECK_POINT: "The checkpoint is null: there is no timer wheel here",
    RequestCode.GET_TIMER_METRICS: "The timer message store is null: there is no timer wheel here",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "tables are kept as JSON files, not in RocksDB",
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _NO_STATIC_TOPICS,
    RequestCode.QUERY_ASSIGNMENT: _NO_POP,
    **dict.fromkeys((902, 903), "this broker is no container of brokers"),
}


class _RequestMode(msgspec.Struct, rename="camel"):
    topic: str
    consumer_group: str
    mode: str = "PULL"


_request_mode: Final = msgspec.json.Decoder(_RequestMode, strict=False)


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    for code, reason in _ABSENT.items():
        dispatcher.register(code, _refusal(reason))
    processor = AbsentFeatureProcessor(controller)
    dispatcher.register(RequestCode.SET_MESSAGE_REQUEST_MODE, processor.set_request_mode)
    dispatcher.register(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, processor.request_modes)
    dispatcher.register(RequestCode.POP_ROLLBACK, processor.export_pop_records)
    dispatcher.register(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, processor.group_forbidden)


def _refusal(reason: str) -> Processor:
    def refuse(_connection: Connection, _command: RemotingCommand) -> RemotingCommand:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, reason)

    return refuse


class AbsentFeatureProcessor:
    """Answers requests whose answer depends on what they ask for."""

    def __init__(self, broker: BrokerContext) -> None:
        """Know the topics and groups of `broker`."""
        self._broker = broker

    def set_request_mode(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Accept that a group pulls, which it does anyway, and refuse that it pops."""
        wanted = decode_request(command.body, _request_mode)
        if wanted.topic.startswith(RETRY_PREFIX):
            raise BrokerError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        require_topic(self._broker, wanted.topic)
        if self._broker.quotas is not None:
            self._broker.quotas.refuse_group(command.asked_by, wanted.consumer_group)
        if self._broker.groups.find(wanted.consumer_group, connection.peer_address) is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group does not exist, {wanted.consumer_group}",
            )
        if wanted.mode != "PULL":
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"mode {wanted.mode}: {_NO_POP}")
        return command.response(ResponseCode.SUCCESS)

    def request_modes(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the groups that do not pull: none."""
        return command.response(
            ResponseCode.SUCCESS, body=encode_body({"messageRequestModeMap": {}})
        )

    def export_pop_records(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Succeed: there are no records that could be exported."""
        return command.response(ResponseCode.SUCCESS)

    def group_forbidden(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Tell that a group may read a topic, and refuse to forbid it."""
        group, topic = required_str(command, "group"), required_str(command, "topic")
        if (optional_str(command, "readable") or "true").lower() != "true":
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"group {group} cannot be kept from topic {topic}: that needs consumeEnable=false "
                "for the whole group",
            )
        body = encode_group_forbidden(GroupForbidden(group, topic, readable=True))
        return command.response(ResponseCode.SUCCESS, body=body)
