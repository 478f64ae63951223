"""The name server's key-value table and its file, RocketMQ's kvConfig.json.

Its one use in practice is the namespace ORDER_TOPIC_CONFIG: topic to "broker-a:4;broker-b:4", the
queues of a topic whose order matters. A registering broker and every route carry it. The file is
`{"configTable": {namespace: {key: value}}}`; it is written with each change, before the answer and
beside the event loop. Changes take effect one after the other. All of it has a limit, as it is
written: each registration is answered with a namespace, which must fit a frame.

Source: apache/rocketmq namesrv/kvconfig/KVConfigManager.java and KVConfigSerializeWrapper.java
@ rocketmq-all-5.3.3
"""

import asyncio
import logging
from collections.abc import Iterator
from contextvars import Context
from typing import Final

import msgspec

from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.names import check_topic
from mailboat.model.order_config import ORDER_NAMESPACE, check_order
from mailboat.protocol.bodies import encode_body
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.turns import listed_in_turns

MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of all namespaces, keys and values as JSON: a character may take six. That of ordered
topics is for 50,000 of them."""

_ENTRY_BYTES: Final = 12  # what stands around a key and a value
_SLICE_BYTES: Final = 65_536

_log = logging.getLogger(__name__)


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
        self._bytes = 0
        self._turn = asyncio.Lock()

    def load(self) -> None:
        """Read the file.

        Raises:
            DamagedStoreError: neither the file nor the version before it can be read.
            OSError: the disk refuses for now.
        """
        loaded = None if self._file is None else self._file.load(_decoder.decode)
        if loaded is not None:
            self._table = loaded.config_table
            self._forget_what_is_no_topic()
            self._bytes = sum(_size(name, keys) for name, keys in self._table.items())

    def _forget_what_is_no_topic(self) -> None:
        """Leave out the keys that no topic can have: earlier versions took any, of any size."""
        orders = self._table.get(ORDER_NAMESPACE, {})
        odd = [key for key in orders if not _is_topic(key)]
        for key in odd:
            del orders[key]
        if odd:
            text = "%d order configurations are ignored, as no topic can have their keys, first=%s"
            _log.warning(text, len(odd), odd[0])

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key, over what it had.

        Raises:
            BrokerError: INVALID_PARAMETER, it is no order configuration of a topic where one is
                wanted;
                SYSTEM_ERROR, there is no room for it, or the file cannot be written. Nothing was
                changed.
        """
        if namespace == ORDER_NAMESPACE:
            try:
                check_topic(key)
                check_order(value)
            except IllegalMessageError as error:
                text = f"topic {key[:64]}: {error}"
                raise BrokerError(ResponseCode.INVALID_PARAMETER, text) from error
        async with self._turn:
            keys = self._table.get(namespace, {})
            more = _entry_size(key, value)
            if namespace not in self._table:
                more += _entry_size(namespace, "")
            if key in keys:
                more -= _entry_size(key, keys[key])
            if more > 0 and self._bytes + more > MAX_BYTES:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the key-value configuration was not changed: it has {self._bytes} bytes, and "
                    f"at most {MAX_BYTES} are allowed",
                )
            await self._change(namespace, {**keys, key: value}, more)

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, or None."""
        return self._table.get(namespace, {}).get(key)

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a key; one that is not there is fine.

        Raises:
            BrokerError: the file cannot be written; nothing was changed.
        """
        async with self._turn:
            keys = self._table.get(namespace, {})
            if key in keys:
                kept = {name: value for name, value in keys.items() if name != key}
                await self._change(namespace, kept, -_entry_size(key, keys[key]))

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return a copy of all keys of a namespace, or None when nothing was ever put there."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)

    async def _change(self, namespace: str, keys: dict[str, str], more_bytes: int) -> None:
        table = {**self._table, namespace: keys}
        if self._file is not None:
            # Others wait for this as well: it must not stand behind the requests of who asked.
            writing = listed_in_turns(_file_slices(table))
            pieces = await asyncio.get_running_loop().create_task(writing, context=Context())
            try:
                await asyncio.to_thread(self._file.save, b"".join(pieces))
            except OSError as error:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the key-value configuration was not changed: {self._file.path} cannot be "
                    f"written ({error.strerror or error})",
                ) from error
        self._table = table
        self._bytes += more_bytes


def _file_slices(table: dict[str, dict[str, str]]) -> Iterator[bytes]:
    """Write the file, one entry a line, in slices of so many bytes."""
    some, comma = bytearray(b'{\n "configTable": {'), b""
    for namespace, keys in table.items():
        some += comma + b"\n  " + encode_body(namespace) + b": {"
        comma, inner_comma = b",", b""
        for key, value in keys.items():
            some += inner_comma + b"\n   " + encode_body(key) + b": " + encode_body(value)
            inner_comma = b","
            if len(some) >= _SLICE_BYTES:
                yield bytes(some)
                some.clear()
        some += b"\n  }"
    yield bytes(some + b"\n }\n}\n")


def _is_topic(key: str) -> bool:
    try:
        check_topic(key)
    except IllegalMessageError:
        return False
    return True


def _size(namespace: str, keys: dict[str, str]) -> int:
    entries = sum(_entry_size(key, value) for key, value in keys.items())
    return _entry_size(namespace, "") + entries


def _entry_size(key: str, value: str) -> int:
    return len(encode_body(key)) + len(encode_body(value)) + _ENTRY_BYTES
