"""Changes that administrators make: applied, durable and known to the name servers on return.

The processors and the HTTP API both come here.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java @ rocketmq-all-5.3.3.
"""

import asyncio
from collections.abc import Awaitable, Sequence

from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.names import RETRY_PREFIX
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode


async def update_topic(broker: BrokerContext, config: TopicConfig) -> None:
    """Make or change a topic.

    Raises:
        BrokerError: INVALID_PARAMETER, the configuration is not legal; SYSTEM_ERROR, it could not
            be saved.
    """
    await update_topics(broker, [config])


async def update_topics(broker: BrokerContext, configs: Sequence[TopicConfig]) -> None:
    """Make or change topics, none of them if one is not legal.

    Raises:
        BrokerError: INVALID_PARAMETER, a configuration is not legal; SYSTEM_ERROR, they could not
            be saved.
    """
    try:
        for config in configs:
            broker.topics.check(config)
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    changed = [config.topic_name for config in configs if broker.topics.update(config)]
    if changed:
        await _save(broker.topics.persist(), f"topic {', '.join(changed)}")
        await broker.registration.register_now()


async def delete_topic(broker: BrokerContext, topic: str) -> None:
    """Remove a topic, its messages' queues and the offsets in it; an unknown one is no error.

    Raises:
        BrokerError: INVALID_PARAMETER, it is the broker's own; SYSTEM_ERROR, the change could not
            be saved, or the queues not be removed.
    """
    if not topic:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, "the topic to delete has no name")
    try:
        deleted = broker.topics.delete(topic)
        for name in _pop_retry_topics(broker, topic):
            broker.topics.delete(name)
            _forget_topic(broker, name)
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    _forget_topic(broker, topic)
    if deleted:
        await _save(
            asyncio.gather(broker.topics.persist(), broker.offsets.persist()), f"topic {topic}"
        )
        await broker.registration.register_now()


async def update_group(broker: BrokerContext, config: SubscriptionGroupConfig) -> None:
    """Make or change a consumer group.

    Raises:
        BrokerError: INVALID_PARAMETER, the configuration is not legal; SYSTEM_ERROR, it could not
            be saved.
    """
    await update_groups(broker, [config])


async def update_groups(broker: BrokerContext, configs: Sequence[SubscriptionGroupConfig]) -> None:
    """Make or change consumer groups, none of them if one is not legal.

    Raises:
        BrokerError: INVALID_PARAMETER, a configuration is not legal; SYSTEM_ERROR, they could not
            be saved.
    """
    try:
        for config in configs:
            broker.groups.check(config)
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    for config in configs:
        broker.groups.update(config)
    names = ", ".join(config.group_name for config in configs)
    await _save(broker.groups.persist(), f"group {names}")


async def delete_group(broker: BrokerContext, group: str, *, clean_offset: bool) -> None:
    """Remove a consumer group, and its offsets if asked to; an unknown one is no error.

    Raises:
        BrokerError: SYSTEM_ERROR, the change could not be saved.
    """
    broker.groups.delete(group)
    broker.stats.forget_group(group)
    if clean_offset:
        broker.offsets.remove_group(group)
    await _save(asyncio.gather(broker.groups.persist(), broker.offsets.persist()), f"group {group}")


async def delete_offsets(broker: BrokerContext, group: str, topic: str) -> bool:
    """Forget a group's offsets in one topic, which it consumes no longer; tell whether it had any.

    Raises:
        BrokerError: INVALID_PARAMETER, connected members subscribe to the topic; SYSTEM_ERROR, the
            change could not be saved.
    """
    if broker.consumers.find_subscription(group, topic) is not None:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"connected members of group {group} subscribe to topic {topic}: stop them first",
        )
    deleted = broker.offsets.remove(group, topic)
    await _save(broker.offsets.persist(), f"what group {group} has read of topic {topic}")
    return deleted


def _pop_retry_topics(broker: BrokerContext, topic: str) -> list[str]:
    """Return the topics in which RocketMQ 5 retries a topic's messages group by group."""
    names = (
        f"{RETRY_PREFIX}{group}{separator}{topic}"
        for group in broker.offsets.groups_of(topic)
        for separator in "+_"
    )
    return [name for name in names if broker.topics.select(name) is not None]


def _forget_topic(broker: BrokerContext, topic: str) -> None:
    broker.offsets.remove_topic(topic)
    broker.stats.forget_topic(topic)
    try:
        broker.store.delete_topic(topic)
    except OSError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"topic {topic} is deleted, but its queues are not ({error.strerror or error}); "
            "delete it once more when the disk works",
        ) from error


async def _save(saving: Awaitable[object], subject: str) -> None:
    try:
        await saving
    except OSError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"{subject} is changed, but that could not be saved ({error.strerror or error}) and "
            "would be lost with a restart; saving is tried again every few seconds",
        ) from error
