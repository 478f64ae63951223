"""Clusters, brokers and name servers: who is there, what they say of themselves, their settings.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java and tools/command/CommandUtil.java.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from mailboat.client.addresses import resolved
from mailboat.client.broker_calls import call, change
from mailboat.client.instance import ClientInstance
from mailboat.errors import BrokerError, RouteNotFoundError
from mailboat.protocol.admin_bodies import ProducerInfo
from mailboat.protocol.bodies import (
    convert_body,
    decode_kv_table,
    decode_properties_text,
    encode_properties_text,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, optional_int
from mailboat.protocol.queue_map import loads_object
from mailboat.protocol.route import MASTER_ID, BrokerData, ClusterInfo, decode_cluster_info

CLEANUP_TIMEOUT_S: Final = 30.0
"""Brokers answer a request to clean up once it is done."""


class BrokerAddress(NamedTuple):
    """One broker process."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class ClusterAdmin:
    """Asks about clusters and brokers."""

    def __init__(self, instance: ClientInstance) -> None:
        """Use the connections of `instance`."""
        self._instance = instance

    async def info(self) -> ClusterInfo:
        """Return every broker and cluster that the name server knows."""
        response = await self._instance.name_servers.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_cluster_info(response.body)

    async def brokers(self) -> list[BrokerAddress]:
        """Return every broker process, masters before their slaves."""
        return sorted(
            BrokerAddress(data.cluster, data.broker_name, broker_id, address)
            for data in (await self.info()).broker_addr_table.values()
            for broker_id, address in data.broker_addrs.items()
        )

    async def brokers_at(self, address: str) -> list[BrokerAddress]:
        """Return the broker processes at an address, "ip:port", also those that routes name by a
        host name which stands for it."""
        known = await self.brokers()
        return [
            each
            for each in known
            if each.address == address or address in await resolved(each.address)
        ]

    async def masters(
        self, *, cluster: str | None = None, broker_name: str | None = None
    ) -> list[BrokerAddress]:
        """Return the masters, of one cluster or with one name where that is given.

        Raises:
            RouteNotFoundError: there is none.
        """
        info = await self.info()
        found = [
            BrokerAddress(data.cluster, data.broker_name, MASTER_ID, data.broker_addrs[MASTER_ID])
            for data in info.broker_addr_table.values()
            if MASTER_ID in data.broker_addrs and _is_wanted(data, cluster, broker_name)
        ]
        if not found:
            where = f" in cluster {cluster}" if cluster else ""
            which = f"master broker named {broker_name}" if broker_name else "master broker"
            names = ", ".join(sorted(info.broker_addr_table)) or "none"
            raise RouteNotFoundError(f"there is no {which}{where}; brokers known: {names}")
        return sorted(found)

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return the numbers that a broker tells of itself."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        response = await call(self._instance.remoting, address, code)
        return decode_kv_table(response.body)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's configuration."""
        response = await call(self._instance.remoting, address, RequestCode.GET_BROKER_CONFIG)
        return decode_properties_text(response.body)

    async def update_broker_config(self, address: str, properties: Mapping[str, str]) -> None:
        """Change settings of a running broker; Java brokers ignore keys that they do not know.

        Raises:
            BrokerError: a key may not be changed, or a value is bad.
        """
        body = encode_properties_text(properties)
        await change(self._instance.remoting, address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Let no route name a broker's queues for sending; return how many topics that changed.

        The result has an entry for each name server. A broker that restarts is back again.
        """
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        return await self._change_perm(code, broker_name, "wipeTopicCount")

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take back what `wipe_write_perm` did; return how many topics that changed."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER
        return await self._change_perm(code, broker_name, "addTopicCount")

    async def namesrv_configs(self) -> dict[str, dict[str, str]]:
        """Return the configuration of every name server by its address."""
        configs: dict[str, dict[str, str]] = {}
        for address in self._instance.name_servers.addresses:
            code = RequestCode.GET_NAMESRV_CONFIG
            response = await call(self._instance.remoting, address, code)
            configs[address] = decode_properties_text(response.body)
        return configs

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """Return the members of every producer group of a broker; brokers know it since 4.9.2."""
        response = await call(self._instance.remoting, address, RequestCode.GET_ALL_PRODUCER_INFO)
        table = loads_object(response.body).get("data") or {}
        return convert_body(table, dict[str, list[ProducerInfo]])

    async def clean(self, address: str, code: int) -> None:
        """Ask a broker to clean up and wait until it has.

        Args:
            address: the broker.
            code: CLEAN_EXPIRED_CONSUMEQUEUE, DELETE_EXPIRED_COMMITLOG or CLEAN_UNUSED_TOPIC.
        """
        await call(self._instance.remoting, address, code, timeout_s=CLEANUP_TIMEOUT_S)

    async def kv_value(self, namespace: str, key: str) -> str | None:
        """Return a value that is kept at the name servers, or None."""
        fields: dict[str, ExtValue] = {"namespace": namespace, "key": key}
        try:
            response = await self._instance.name_servers.request(RequestCode.GET_KV_CONFIG, fields)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return response.ext_fields.get("value")

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Keep a value at every name server."""
        fields: dict[str, ExtValue] = {"namespace": namespace, "key": key, "value": value}
        await self._instance.name_servers.request_all(RequestCode.PUT_KV_CONFIG, fields)

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Forget a value at every name server."""
        fields: dict[str, ExtValue] = {"namespace": namespace, "key": key}
        await self._instance.name_servers.request_all(RequestCode.DELETE_KV_CONFIG, fields)

    async def _change_perm(self, code: int, broker_name: str, field: str) -> dict[str, int]:
        await self.masters(broker_name=broker_name)
        counts: dict[str, int] = {}
        for address in self._instance.name_servers.addresses:
            fields: dict[str, ExtValue] = {"brokerName": broker_name}
            response = await call(self._instance.remoting, address, code, fields)
            counts[address] = optional_int(response, field, 0)
        return counts


def _is_wanted(data: BrokerData, cluster: str | None, broker_name: str | None) -> bool:
    return cluster in (None, data.cluster) and broker_name in (None, data.broker_name)
