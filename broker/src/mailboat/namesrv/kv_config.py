"""The name server's key-value table, in memory; RocketMQ also writes it to kvConfig.json.

Its one use in practice is the namespace ORDER_TOPIC_CONFIG: topic to "broker-a:4;broker-b:4", the
queues of a topic whose order matters. A registering broker and every route carry it.

Source: apache/rocketmq namesrv/kvconfig/KVConfigManager.java @ rocketmq-all-5.3.3
"""

from typing import Final

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the order configurations, keyed by topic."""


class KvConfigManager:
    """Texts by namespace and key."""

    def __init__(self) -> None:
        """Start empty."""
        self._table: dict[str, dict[str, str]] = {}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key, over what it had."""
        self._table.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, or None."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; one that is not there is fine."""
        table = self._table.get(namespace, {})
        table.pop(key, None)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return a copy of all keys of a namespace, or None when nothing was ever put there."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)
