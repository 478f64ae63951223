"""Limits on reading cold data: 2001, 2002 and 2003, and 2004 SET_COMMITLOG_READ_MODE.

RocketMQ keeps such limits per group in memory and obeys them where coldDataFlowControlEnable is
set, which it is not by default. Here they are kept and shown, and nothing obeys them.

Source: apache/rocketmq broker/coldctr/ColdDataCgCtrService.java @ rocketmq-all-5.3.3.
"""

from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError, ConfigError, IllegalMessageError, RemoteProtocolError
from mailboat.model.names import check_group
from mailboat.protocol.bodies import decode_properties_text, encode_body
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, parse_decimal
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher

_GROUP_BYTES: Final = 3 * 1024 * 1024  # BrokerConfig.cgColdReadThreshold
_GLOBAL_BYTES: Final = 100 * 1024 * 1024  # BrokerConfig.globalColdReadThreshold
_MAX_GROUPS: Final = 10_000


def register(dispatcher: Dispatcher, _controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ColdDataProcessor()
    dispatcher.register(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, processor.update)
    dispatcher.register(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, processor.remove)
    dispatcher.register(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, processor.info)
    dispatcher.register(RequestCode.SET_COMMITLOG_READ_MODE, processor.set_read_mode)


class ColdDataProcessor:
    """Keeps the limits that administrators set."""

    def __init__(self) -> None:
        """Start without limits."""
        self._thresholds: dict[str, int] = {}

    def update(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Set the limits of groups, all of the request's or none."""
        thresholds = _read_thresholds(command.body)
        if len(self._thresholds.keys() | thresholds.keys()) > _MAX_GROUPS:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"no more than {_MAX_GROUPS} groups can have a limit on cold reads",
            )
        self._thresholds.update(thresholds)
        return command.response(ResponseCode.SUCCESS)

    def remove(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Forget the limit of a group; one without is no error."""
        self._thresholds.pop(command.body.decode(errors="replace"), None)
        return command.response(ResponseCode.SUCCESS)

    def info(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the limits; nobody is measured."""
        body = encode_body(
            {
                "runtimeTable": {},
                "configTable": self._thresholds,
                "cgColdReadThreshold": _GROUP_BYTES,
                "globalColdReadThreshold": _GLOBAL_BYTES,
                "globalAcc": 0,
            }
        )
        return command.response(ResponseCode.SUCCESS, body=body)

    def set_read_mode(self, _connection: Connection, _command: RemotingCommand) -> RemotingCommand:
        """Refuse: the CommitLog is not read through a mapping whose read-ahead could be set."""
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            "set commitlog readahead mode failed: this broker leaves read-ahead to the kernel",
        )


def _read_thresholds(body: bytes) -> dict[str, int]:
    thresholds = {}
    try:
        for group, text in decode_properties_text(body).items():
            check_group(group)
            threshold = parse_decimal(text, 63)
            if threshold is None or threshold < 0:
                raise ConfigError(group, text, "must be a number of bytes")
            thresholds[group] = threshold
    except (RemoteProtocolError, ConfigError, IllegalMessageError) as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    return thresholds
