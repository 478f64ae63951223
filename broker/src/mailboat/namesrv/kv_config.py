"""The name server's key-value table and its file, RocketMQ's kvConfig.json.

Its one use in practice is the namespace ORDER_TOPIC_CONFIG: topic to "broker-a:4;broker-b:4", the
queues of a topic whose order matters. A registering broker and every route carry it. The file is
`{"configTable": {namespace: {key: value}}}`; it is written with each change, before the answer.

Source: apache/rocketmq namesrv/kvconfig/KVConfigManager.java and KVConfigSerializeWrapper.java
@ rocketmq-all-5.3.3
"""

from typing import Final

import msgspec

from mailboat.disk.json_file import JsonFile, to_pretty_json
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the order configurations, keyed by topic."""


class _KvConfigFile(msgspec.Struct, rename="camel"):
    """What the file holds."""

    config_table: dict[str, dict[str, str]]


_decoder: Final = msgspec.json.Decoder(_KvConfigFile)


class KvConfigManager:
    """Texts by namespace and key."""

    def __init__(self, file: JsonFile | None = None) -> None:
        """Start empty; without a file the table lives as long as the process."""
        self._file = file
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file.

        Raises:
            DamagedStoreError: neither the file nor the version before it can be read.
            OSError: the disk refuses for now.
        """
        loaded = None if self._file is None else self._file.load(_decoder.decode)
        if loaded is not None:
            self._table = loaded.config_table

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key, over what it had.

        Raises:
            BrokerError: the file cannot be written; nothing was changed.
        """
        keys = self._table.get(namespace, {})
        self._change(namespace, {**keys, key: value})

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, or None."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; one that is not there is fine.

        Raises:
            BrokerError: the file cannot be written; nothing was changed.
        """
        keys = self._table.get(namespace, {})
        if key in keys:
            self._change(namespace, {name: kept for name, kept in keys.items() if name != key})

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return a copy of all keys of a namespace, or None when nothing was ever put there."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)

    def _change(self, namespace: str, keys: dict[str, str]) -> None:
        table = {**self._table, namespace: keys}
        if self._file is not None:
            try:
                self._file.save(to_pretty_json(msgspec.json.encode(_KvConfigFile(table))))
            except OSError as error:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the key-value configuration was not changed: {self._file.path} cannot be "
                    f"written ({error.strerror or error})",
                ) from error
        self._table = table
