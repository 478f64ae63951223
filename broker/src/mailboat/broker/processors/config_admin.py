"""The broker's settings: 25 UPDATE_BROKER_CONFIG, 26 GET_BROKER_CONFIG.

Only live settings change, every value is checked by its type, and all changes of a request are made
or none. RocketMQ takes every key but a few, so that whoever reaches the port may move the store's
folder or name a command (CVE-2023-33246).

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java (updateBrokerConfig,
getBrokerConfig) @ rocketmq-all-5.3.3.
"""

import os
import time
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.config import live_keys, properties_of
from mailboat.errors import BrokerError, ConfigError
from mailboat.model.data_version import DataVersion
from mailboat.protocol.bodies import (
    decode_properties_text,
    encode_data_version,
    encode_properties_text,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher

# What tools read, and 4.9's exportConfigs fails without, of things that are not configurable here.
_FIXED: Final = {
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
    "filterServerNums": "0",
    "useTLS": "false",
}


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ConfigAdminProcessor(controller)
    dispatcher.register(RequestCode.UPDATE_BROKER_CONFIG, processor.update_config)
    dispatcher.register(RequestCode.GET_BROKER_CONFIG, processor.get_config)


class ConfigAdminProcessor:
    """Shows and changes the settings."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the settings of `broker`."""
        self._broker = broker
        self._version = DataVersion()

    def get_config(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the effective settings as properties text."""
        return command.response(
            ResponseCode.SUCCESS,
            None,
            {"version": encode_data_version(self._version).decode()},
            encode_properties_text({**_FIXED, **properties_of(self._broker.settings)}),
        )

    async def update_config(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Change live settings; those are durable only in the configuration file."""
        changes = decode_properties_text(command.body)
        live = live_keys(self._broker.settings.role)
        for key in changes:
            if key not in live:
                raise BrokerError(
                    ResponseCode.NO_PERMISSION,
                    f"{key} cannot be changed in a running broker; nothing was changed. What can "
                    f"be: {', '.join(sorted(live))}",
                )
        before = self._broker.settings
        try:
            self._broker.change_config(changes)
        except ConfigError as error:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"{error}; nothing was changed"
            ) from error
        if self._broker.settings != before:
            self._version.advance(time.time_ns() // 1_000_000)
        if self._broker.settings.broker != before.broker:
            # Clients ask for routes right after the answer.
            await self._broker.registration.register_now()
        return command.response(ResponseCode.SUCCESS)
