"""Checks that several processors share; each refusal is one clear sentence."""

from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError
from mailboat.model.names import RETRY_PREFIX
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode


def require_topic(broker: BrokerContext, topic: str) -> TopicConfig:
    """Return a topic's configuration.

    Raises:
        BrokerError: TOPIC_NOT_EXIST.
    """
    config = broker.topics.select(topic)
    if config is None:
        raise BrokerError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{topic}] not exist, apply first please! It is not on this broker.",
        )
    return config


def require_queue(broker: BrokerContext, topic: str, queue_id: int) -> None:
    """Refuse a queue that this broker does not have.

    A queue that was taken away by lowering the topic's numbers still counts while it holds
    messages. A group's retry topic counts as there before its first heartbeat made it: RocketMQ
    answers for it too, and a consumer that starts asks early.

    Raises:
        BrokerError: TOPIC_NOT_EXIST or INVALID_PARAMETER.
    """
    if topic.startswith(RETRY_PREFIX) and broker.topics.select(topic) is None:
        return
    config = require_topic(broker, topic)
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if 0 <= queue_id < queues or broker.store.has_queue(topic, queue_id):
        return
    raise BrokerError(
        ResponseCode.INVALID_PARAMETER,
        f"queueId {queue_id} is illegal, topic {topic} has the queues 0 to {queues - 1}",
    )


def refuse_disabled_broadcast(broker: BrokerContext, group: str) -> None:
    """Refuse a broadcasting group that may not broadcast (consumeBroadcastEnable=false).

    Raises:
        BrokerError: NO_PERMISSION.
    """
    members = broker.consumers.groups.get(group)
    if members is None or not members.is_broadcasting:
        return
    config = broker.groups.select(group)
    if config is not None and not config.consume_broadcast_enable:
        raise BrokerError(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group}] can not consume by broadcast way",
        )
