"""Clusters and brokers: who is there, and what they say of themselves.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java and tools/command/CommandUtil.java.
"""

from typing import NamedTuple

from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.errors import RouteNotFoundError
from mailboat.protocol.bodies import decode_kv_table, decode_properties_text
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.route import MASTER_ID, BrokerData, ClusterInfo, decode_cluster_info


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


def _is_wanted(data: BrokerData, cluster: str | None, broker_name: str | None) -> bool:
    return cluster in (None, data.cluster) and broker_name in (None, data.broker_name)
