"""Topics: make, change, delete, describe.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java.
"""

from mailboat.client.admin.cluster import ClusterAdmin
from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import AUTO_CREATE_TOPIC, check_topic
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

        Args:
            config: the topic.
            cluster: only on the masters of this cluster.
            broker_name: only on this broker.

        Raises:
            IllegalMessageError: the topic's name is illegal.
        """
        check_topic(config.topic_name)
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
        masters = await self._cluster.masters(cluster=cluster, broker_name=broker_name)
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        for master in masters:
            await call(self._instance.remoting, master.address, code, fields)
        return [master.broker_name for master in masters]

    async def delete(self, topic: str) -> None:
        """Delete a topic from every master and name server; an unknown one is no error."""
        for master in await self._cluster.masters():
            code = RequestCode.DELETE_TOPIC_IN_BROKER
            await call(self._instance.remoting, master.address, code, {"topic": topic})
        name_servers = self._instance.name_servers
        await name_servers.request_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})

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
