"""Checks that several processors share; each refusal is one clear sentence."""

from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError
from mailboat.model.names import RETRY_PREFIX
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode

# What stands for a broker in static topics of release 5.
_LOGICAL_BROKER: Final = "__syslo__"


def require_own_name(broker: BrokerContext, broker_name: str | None) -> None:
    """Refuse a request that is meant for a broker of another name, where it names one.

    Of every request but sends and pulls the dispatcher checks `bname`; those and what has the name
    elsewhere (`n` of short headers, queues in a body) are the processors' own business.

    An address may be another broker's by now: its queues have the same numbers and other messages,
    and an offset of one says nothing about the other.

    Raises:
        BrokerError: SERVICE_NOT_AVAILABLE, which clients try again, producers elsewhere.
    """
    own_name = broker.settings.broker.broker_name
    if broker_name and broker_name != own_name and not broker_name.startswith(_LOGICAL_BROKER):
        raise BrokerError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"this is broker {own_name} and not {broker_name}, whose address has changed; "
            "ask the name server where it is now",
        )


def refuse_on_slave(broker: BrokerContext) -> None:
    """Refuse what only a master does.

    Raises:
        BrokerError: SERVICE_NOT_AVAILABLE, which clients try again, producers elsewhere.
    """
    if not broker.is_leading:
        raise BrokerError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"this broker is a slave of {broker.settings.broker.broker_name}; ask the name server "
            "where its master is",
        )


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


def has_queue(broker: BrokerContext, topic: str, queue_id: int) -> bool:
    """Tell whether this broker has a queue.

    A queue that was taken away by lowering the topic's numbers still counts while it holds
    messages. A group's retry topic counts as there before its first heartbeat made it: RocketMQ
    answers for it too, and a consumer that starts asks early.
    """
    config = broker.topics.select(topic)
    if config is None:
        return topic.startswith(RETRY_PREFIX)
    queues = max(config.read_queue_nums, config.write_queue_nums)
    return 0 <= queue_id < queues or broker.store.has_queue(topic, queue_id)


def queues_to_show(broker: BrokerContext, config: TopicConfig, queues: int) -> list[int]:
    """Return the first `queues` queues of a topic, and further ones in which messages lie: those
    that it had before it got fewer."""
    store, topic = broker.store, config.topic_name
    further = [
        each
        for each in store.queue_ids(topic)
        if each >= queues and store.min_offset(topic, each) < store.max_offset(topic, each)
    ]
    return [*range(queues), *further]


def require_queue(broker: BrokerContext, topic: str, queue_id: int) -> None:
    """Refuse a queue that this broker does not have.

    Raises:
        BrokerError: TOPIC_NOT_EXIST or INVALID_PARAMETER.
    """
    if has_queue(broker, topic, queue_id):
        return
    config = require_topic(broker, topic)
    queues = max(config.read_queue_nums, config.write_queue_nums)
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
