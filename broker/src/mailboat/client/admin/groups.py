"""Consumer groups: settings, members, progress.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java.
"""

from typing import Final

from mailboat.client.admin.cluster import ClusterAdmin
from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.errors import BrokerError, RouteNotFoundError
from mailboat.model.names import check_group, dlq_topic, retry_topic
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.client_connections import (
    ConsumerConnection,
    decode_consumer_connection,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.group_table import decode_group_table, encode_group_config
from mailboat.protocol.route import MASTER_ID
from mailboat.protocol.running_info import ConsumerRunningInfo, decode_running_info
from mailboat.protocol.stats_bodies import ConsumeStats, decode_consume_stats

RUNNING_INFO_TIMEOUT_S: Final = 15.0
"""Brokers wait 10 s for the member that they relay the question to."""


class GroupAdmin:
    """Makes and describes consumer groups."""

    def __init__(self, instance: ClientInstance, cluster: ClusterAdmin) -> None:
        """Use the connections of `instance`."""
        self._instance = instance
        self._cluster = cluster

    async def configs(self) -> dict[str, SubscriptionGroupConfig]:
        """Return every group that a master knows, the system's own among them."""
        groups: dict[str, SubscriptionGroupConfig] = {}
        for master in await self._cluster.masters():
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            response = await call(self._instance.remoting, master.address, code)
            groups |= decode_group_table(response.body).subscription_group_table
        return dict(sorted(groups.items()))

    async def create(self, config: SubscriptionGroupConfig) -> None:
        """Make a group, or change it, on every master.

        Raises:
            IllegalMessageError: the group's name is illegal.
        """
        check_group(config.group_name)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        for master in await self._cluster.masters():
            body = encode_group_config(config)
            await call(self._instance.remoting, master.address, code, body=body)

    async def delete(self, group: str) -> None:
        """Delete a group, its offsets, its retry topic and its dead letters from every master."""
        # 4.9 and 5.x name the field that deletes the offsets too differently.
        fields: dict[str, ExtValue] = {
            "groupName": group,
            "removeOffset": True,
            "cleanOffset": True,
        }
        masters = await self._cluster.masters()
        for master in masters:
            code = RequestCode.DELETE_SUBSCRIPTIONGROUP
            await call(self._instance.remoting, master.address, code, fields)
        name_servers = self._instance.name_servers
        for topic in (retry_topic(group), dlq_topic(group)):
            for master in masters:
                code = RequestCode.DELETE_TOPIC_IN_BROKER
                await call(self._instance.remoting, master.address, code, {"topic": topic})
            await name_servers.request_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})

    async def stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return a group's progress in every queue, or in those of one topic."""
        merged = ConsumeStats()
        fields: dict[str, ExtValue] = {"consumerGroup": group, "topic": topic}
        for address in await self._addresses(group):
            code = RequestCode.GET_CONSUME_STATS
            response = await call(self._instance.remoting, address, code, fields)
            stats = decode_consume_stats(response.body)
            merged.offset_table |= stats.offset_table
            merged.consume_tps += stats.consume_tps
        return merged

    async def connection(self, group: str) -> ConsumerConnection | None:
        """Return a group's members and subscriptions, or None when nobody is online."""
        merged: ConsumerConnection | None = None
        fields: dict[str, ExtValue] = {"consumerGroup": group}
        for address in await self._addresses(group):
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            try:
                response = await call(self._instance.remoting, address, code, fields)
            except BrokerError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            found = decode_consumer_connection(response.body)
            if merged is None:
                merged = found
            else:
                known = {member.client_id for member in merged.connection_set}
                merged.connection_set += [
                    member for member in found.connection_set if member.client_id not in known
                ]
                merged.subscription_table |= found.subscription_table
        return merged

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Return what one member of a group says of itself; the broker relays the question."""
        failure: BrokerError | None = None
        fields: dict[str, ExtValue] = {"consumerGroup": group, "clientId": client_id}
        for address in await self._addresses(group):
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            try:
                response = await call(
                    self._instance.remoting, address, code, fields, timeout_s=RUNNING_INFO_TIMEOUT_S
                )
            except BrokerError as error:
                failure = error
                continue
            return decode_running_info(response.body)
        raise failure or RouteNotFoundError(f"no broker knows group {group}")

    async def _addresses(self, group: str) -> list[str]:
        """Return the masters that hold the group's retry topic, else all masters."""
        try:
            route = await self._instance.name_servers.topic_route(retry_topic(group))
        except RouteNotFoundError:
            return [master.address for master in await self._cluster.masters()]
        return [
            broker.broker_addrs[MASTER_ID]
            for broker in route.broker_datas
            if MASTER_ID in broker.broker_addrs
        ]
