"""Consumer groups: settings, members, progress.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from mailboat.client.admin.cluster import ClusterAdmin
from mailboat.client.admin.partly import told_partly
from mailboat.client.broker_calls import call, change
from mailboat.client.instance import ClientInstance
from mailboat.errors import BrokerError, RemotingError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import check_group, dlq_topic, retry_topic
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.client_connections import (
    ConsumerConnection,
    decode_consumer_connection,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.group_table import decode_group_table, encode_group_config
from mailboat.protocol.running_info import ConsumerRunningInfo, decode_running_info
from mailboat.protocol.stats_bodies import ConsumeStats, decode_consume_stats

logger = logging.getLogger(__name__)

RUNNING_INFO_TIMEOUT_S: Final = 15.0
"""Brokers wait 10 s for the member that they relay the question to."""

POSITION_PREFIX: Final = "mailboat-redrive-"
"""Groups with such names only hold how far a redrive of dead letters is."""

_RANGE_NUMBER: Final = re.compile("[0-9a-f]{8}")


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
            groups |= await self._table(master.address)
        return dict(sorted(groups.items()))

    async def configs_by_broker(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of a group by the name of each broker that knows it."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for master in await self._cluster.masters():
            config = (await self._table(master.address)).get(group)
            if config is not None:
                found[master.broker_name] = config
        return found

    async def create(
        self,
        config: SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> list[str]:
        """Make a group, or change it, on every master; return the brokers' names.

        Args:
            config: the group.
            cluster: only on the masters of this cluster.
            broker_name: only on this broker.

        Raises:
            IllegalMessageError: the group's name is illegal.
            PartlyDoneError: a broker failed after others had done it.
        """
        check_group(config.group_name)
        masters = await self._cluster.masters(cluster=cluster, broker_name=broker_name)
        names = [master.broker_name for master in masters]
        with told_partly("done", names) as done:
            for master in masters:
                await self._put(master.address, config)
                done.append(master.broker_name)
        return names

    async def update(
        self,
        group: str,
        change: Callable[[SubscriptionGroupConfig], SubscriptionGroupConfig],
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> dict[str, SubscriptionGroupConfig]:
        """Change a group on every master that knows it; return its settings by broker name.

        Args:
            group: the group.
            change: makes the new settings of the present ones.
            cluster: only on the masters of this cluster.
            broker_name: only on this broker.

        Raises:
            RouteNotFoundError: no master asked for knows the group.
            PartlyDoneError: a broker failed after others had done it.
        """
        changed: dict[str, SubscriptionGroupConfig] = {}
        masters = await self._cluster.masters(cluster=cluster, broker_name=broker_name)
        with told_partly("done", [master.broker_name for master in masters]) as done:
            for master in masters:
                present = (await self._table(master.address)).get(group)
                if present is not None:
                    changed[master.broker_name] = change(present)
                    # Brokers take changes of attributes only; these stay as they are.
                    sent = replace(changed[master.broker_name], attributes={})
                    await self._put(master.address, sent)
                done.append(master.broker_name)
        if not changed:
            names = ", ".join(master.broker_name for master in masters)
            raise RouteNotFoundError(f"group {group} is not on {names}; create it first")
        return changed

    async def is_known(self, group: str, *, cluster: str | None = None) -> bool:
        """Tell whether a master has a group, or a name server a route of a topic of its own.

        With `cluster`, only the masters of that cluster are asked, and only its brokers count in
        the routes.
        """
        for master in await self._cluster.masters(cluster=cluster):
            if any(
                name == group or is_position_of(name, group)
                for name in await self._table(master.address)
            ):
                return True
        for topic in (retry_topic(group), dlq_topic(group)):
            with suppress(RouteNotFoundError):
                route = await self._instance.name_servers.topic_route(topic)
                if any(cluster in (None, broker.cluster) for broker in route.broker_datas):
                    return True
        return False

    async def delete(self, group: str, *, cluster: str | None = None) -> None:
        """Delete a group, its offsets, its retry topic and its dead letters from every master.

        The positions of redrives of its dead letters go too: a group of the same name may have
        others one day. With `cluster`, only from the masters of that cluster.

        Raises:
            PartlyDoneError: a broker failed after others had deleted the group itself.
        """
        # 4.9 and 5.x name the field that deletes the offsets too differently.
        fields: dict[str, ExtValue] = {"removeOffset": True, "cleanOffset": True}
        masters = await self._cluster.masters(cluster=cluster)
        with told_partly("done", [master.broker_name for master in masters]) as done:
            for master in masters:
                known = await self._table(master.address)
                for name in (group, *(each for each in known if is_position_of(each, group))):
                    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
                    own = {"groupName": name, **fields}
                    await change(self._instance.remoting, master.address, code, own)
                done.append(master.broker_name)
        name_servers = self._instance.name_servers
        for topic in (retry_topic(group), dlq_topic(group)):
            for master in masters:
                code = RequestCode.DELETE_TOPIC_IN_BROKER
                await change(self._instance.remoting, master.address, code, {"topic": topic})
            await name_servers.request_all(
                RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic, "clusterName": cluster}
            )

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

    async def owners(self, group: str, client_ids: Iterable[str]) -> dict[MessageQueue, str]:
        """Return which member reads each queue; what members do not tell is left out."""
        names = sorted(client_ids)
        infos = await asyncio.gather(*(self._info_or_none(group, name) for name in names))
        return {
            queue: name
            for name, info in zip(names, infos, strict=True)
            if info is not None
            for queue in info.mq_table
        }

    async def _info_or_none(self, group: str, client_id: str) -> ConsumerRunningInfo | None:
        try:
            return await self.running_info(group, client_id)
        except (BrokerError, RemotingError) as error:
            logger.debug("running info group=%s client=%s: %s", group, client_id, error)
            return None

    async def _table(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        response = await call(self._instance.remoting, address, code)
        return decode_group_table(response.body).subscription_group_table

    async def _put(self, address: str, config: SubscriptionGroupConfig) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await change(self._instance.remoting, address, code, body=encode_group_config(config))

    async def _addresses(self, group: str) -> list[str]:
        """Return the brokers that hold the group's retry topic, else all masters.

        Of each its master, or a slave while there is none: that knows the group too, and a broker
        left out would count as one where nothing is to be consumed.
        """
        try:
            route = await self._instance.name_servers.topic_route(retry_topic(group))
        except RouteNotFoundError:
            return [master.address for master in await self._cluster.masters()]
        found = [broker.broker_addrs for broker in route.broker_datas]
        return [addresses[min(addresses)] for addresses in found if addresses]


def is_position_group(name: str) -> bool:
    """Tell whether a group only holds the position of a redrive."""
    return name.startswith(POSITION_PREFIX)


def is_position_of(name: str, group: str) -> bool:
    """Tell whether a group holds a position in the dead letters of `group`: of all, or a range."""
    start, _, number = name.rpartition("-")
    whole = POSITION_PREFIX + group
    return name == whole or (start == whole and _RANGE_NUMBER.fullmatch(number) is not None)
