"""Topics: make, change, delete, describe.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java.
"""

from collections.abc import Callable

from mailboat.client.admin.cluster import BrokerAddress, ClusterAdmin
from mailboat.client.admin.partly import told_partly
from mailboat.client.broker_calls import call, change
from mailboat.client.instance import ClientInstance
from mailboat.errors import BrokerError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import AUTO_CREATE_TOPIC, check_topic
from mailboat.model.order_config import ORDER_NAMESPACE, decode_order, encode_order
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import decode_group_list, decode_topic_list
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.route import MASTER_ID, TopicRouteData
from mailboat.protocol.stats_bodies import TopicOffset, decode_topic_stats
from mailboat.protocol.topic_table import decode_topic_table


class TopicAdmin:
    """Makes and describes topics."""

    def __init__(self, instance: ClientInstance, cluster: ClusterAdmin) -> None:
        """Use the connections of `instance`."""
        self._instance = instance
        self._cluster = cluster

    async def names(self) -> list[str]:
        """Return the names of all topics, the system's own among them."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        response = await self._instance.name_servers.request(code)
        return sorted(decode_topic_list(response.body)[0])

    async def configs(self, address: str) -> dict[str, TopicConfig]:
        """Return the topics of one broker with their settings."""
        response = await call(self._instance.remoting, address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_topic_table(response.body).topic_config_table

    async def create(
        self, config: TopicConfig, *, cluster: str | None = None, broker_name: str | None = None
    ) -> list[str]:
        """Make a topic, or change it, on every master; return the brokers' names.

        For an ordered topic the name servers keep its queues too, as they are now: a producer of
        an ordered topic must not take others while a broker is away.

        Args:
            config: the topic.
            cluster: only on the masters of this cluster.
            broker_name: only on this broker.

        Raises:
            IllegalMessageError: the topic's name is illegal.
            PartlyDoneError: a broker failed after others had done it.
        """
        check_topic(config.topic_name)
        masters = await self._cluster.masters(cluster=cluster, broker_name=broker_name)
        names = [master.broker_name for master in masters]
        with told_partly("done", names) as done:
            for master in masters:
                await self._put(master, config)
                done.append(master.broker_name)
        if config.order:
            queues = {master.broker_name: config.write_queue_nums for master in masters}
            await self._change_order(config.topic_name, queues)
        return names

    async def update(
        self,
        topic: str,
        change: Callable[[TopicConfig], TopicConfig],
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Change a topic on every master that has it; return its settings by broker name.

        Args:
            topic: the topic.
            change: makes the new settings of the present ones; attributes that it does not name
                stay as they are.
            cluster: only on the masters of this cluster.
            broker_name: only on this broker.

        Raises:
            RouteNotFoundError: no master asked for has the topic.
            PartlyDoneError: a broker failed after others had done it.
        """
        changed: dict[str, TopicConfig] = {}
        masters = await self._cluster.masters(cluster=cluster, broker_name=broker_name)
        was_ordered = False
        with told_partly("done", [master.broker_name for master in masters]) as done:
            for master in masters:
                present = (await self.configs(master.address)).get(topic)
                if present is not None:
                    changed[master.broker_name] = change(present)
                    was_ordered = was_ordered or present.order
                    await self._put(master, changed[master.broker_name])
                done.append(master.broker_name)
        if not changed:
            names = ", ".join(master.broker_name for master in masters)
            raise RouteNotFoundError(f"topic {topic} is not on {names}; create it first")
        queues = {name: config.write_queue_nums for name, config in changed.items() if config.order}
        if queues:
            await self._change_order(topic, queues)
        elif was_ordered:
            await self._change_order(topic, dict.fromkeys(changed))
        return changed

    async def is_known(self, topic: str, *, cluster: str | None = None) -> bool:
        """Tell whether a name server has a route of a topic, or a master has the topic itself.

        With `cluster`, only the masters of that cluster are asked, and only its brokers count in
        the route.
        """
        masters = await self._cluster.masters(cluster=cluster)
        try:
            brokers = (await self.route(topic)).broker_datas
        except RouteNotFoundError:
            brokers = []
        if any(cluster in (None, broker.cluster) for broker in brokers):
            return True
        for master in masters:
            if topic in await self.configs(master.address):
                return True
        return False

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic from every master and name server; an unknown one is no error.

        With `cluster`, only from the masters of that cluster; the name servers forget it there.

        Raises:
            PartlyDoneError: a broker failed after others had done it; the name servers keep it.
        """
        masters = await self._cluster.masters(cluster=cluster)
        with told_partly("done", [master.broker_name for master in masters]) as done:
            for master in masters:
                code = RequestCode.DELETE_TOPIC_IN_BROKER
                await change(self._instance.remoting, master.address, code, {"topic": topic})
                done.append(master.broker_name)
        name_servers = self._instance.name_servers
        fields: dict[str, ExtValue] = {"topic": topic, "clusterName": cluster}
        await name_servers.request_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)

    async def order(self, topic: str) -> dict[str, int]:
        """Return how many queues of an ordered topic producers use, by broker name."""
        text = await self._cluster.kv_value(ORDER_NAMESPACE, topic)
        return decode_order(text or "")

    async def route(self, topic: str) -> TopicRouteData:
        """Return which brokers hold the topic, and how many queues of it."""
        return await self._instance.name_servers.topic_route(topic)

    async def stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue."""
        table: dict[MessageQueue, TopicOffset] = {}
        for broker in (await self.route(topic)).broker_datas:
            address = broker.broker_addrs.get(MASTER_ID)
            if address is not None:
                code = RequestCode.GET_TOPIC_STATS_INFO
                response = await call(self._instance.remoting, address, code, {"topic": topic})
                table |= decode_topic_stats(response.body)
        return dict(sorted(table.items()))

    async def consumer_groups(self, topic: str) -> set[str]:
        """Return the groups that consume a topic or have consumed it."""
        groups: set[str] = set()
        for broker in (await self.route(topic)).broker_datas:
            address = broker.broker_addrs.get(MASTER_ID)
            if address is None:
                continue
            try:
                response = await call(
                    self._instance.remoting,
                    address,
                    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
                    {"topic": topic},
                )
            except BrokerError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    continue
                raise
            groups.update(decode_group_list(response.body))
        return groups

    async def _put(self, master: BrokerAddress, config: TopicConfig) -> None:
        fields: dict[str, ExtValue] = {
            "topic": config.topic_name,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": config.read_queue_nums,
            "writeQueueNums": config.write_queue_nums,
            "perm": config.perm,
            "topicFilterType": config.topic_filter_type,
            "topicSysFlag": config.topic_sys_flag,
            "order": config.order,
            "attributes": ",".join(f"+{k}={v}" for k, v in config.attributes.items()) or None,
        }
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await change(self._instance.remoting, master.address, code, fields)

    async def _change_order(self, topic: str, queues: dict[str, int] | dict[str, None]) -> None:
        """Change the entries of some brokers in what name servers keep; None removes one."""
        table: dict[str, int | None] = {**await self.order(topic), **queues}
        text = encode_order({name: nums for name, nums in table.items() if nums is not None})
        if text:
            await self._cluster.put_kv(ORDER_NAMESPACE, topic, text)
        else:
            await self._cluster.delete_kv(ORDER_NAMESPACE, topic)
