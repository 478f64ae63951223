"""Changes that administrators make: applied, durable and known to the name servers on return.

The processors and the HTTP API both come here.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java @ rocketmq-all-5.3.3.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, TypeVar

from mailboat.broker.blocking_calls import on_thread
from mailboat.broker.context import BrokerContext
from mailboat.broker.offsets import refuse_own_group
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.names import RETRY_PREFIX, check_group, check_topic
from mailboat.model.stored_configs import check_group_config
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.turns import in_turns

_T = TypeVar("_T")
_NAMES_LISTED: Final = 10


async def update_topic(broker: BrokerContext, config: TopicConfig) -> None:
    """Make or change a topic.

    Raises:
        BrokerError: INVALID_PARAMETER, the configuration is not legal; SYSTEM_ERROR, it could not
            be saved.
    """
    await update_topics(broker, [config])


async def update_topics(broker: BrokerContext, configs: Sequence[TopicConfig]) -> None:
    """Make or change topics, none of them if one is not legal.

    A new topic takes no message before it is durable.

    Raises:
        BrokerError: INVALID_PARAMETER, a configuration is not legal; SYSTEM_ERROR, there is no room
            for them in a registration, or a change could not be saved; SERVICE_NOT_AVAILABLE, a new
            one could not be saved and is not made.
    """
    broker.refuse_changes()
    await in_turns(_checked(broker.topics.check, configs))
    broker.topics.refuse_too_many(configs)
    changed = await in_turns(_changed_topics(broker, configs))
    new = [config for config in configs if broker.topics.select(config.topic_name) is None]
    await broker.topics.make(new)
    # What is as it is asked for may be on its way to the disk, or could not be saved before.
    names = [config.topic_name for config in configs]
    await _save(broker.topics.persist(), f"topic {_listed(names)}")
    await broker.known_to_replicas()
    if changed or new:
        await broker.registration.register_now()


async def delete_topic(broker: BrokerContext, topic: str) -> None:
    """Remove a topic, its messages' queues and the offsets in it; an unknown one is no error.

    One that is being made is made first, with all that waits for it, and removed then.

    Raises:
        BrokerError: INVALID_PARAMETER, it is the broker's own, or no topic can have that name;
            SYSTEM_ERROR, the change could not be saved, or the queues not be removed.
    """
    broker.refuse_changes()
    await broker.topics.until_made(topic)
    retries = await in_turns(_pop_retry_topics(broker, topic))
    try:
        if broker.topics.select(topic) is None:
            check_topic(topic)
        deleted = broker.topics.delete(topic)
        names = [*retries, topic]
        for name in names[:-1]:
            broker.topics.delete(name)
        await forget_topics(broker, names)
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    # One that is not there may be so in memory alone, because that could not be saved before.
    await _save(asyncio.gather(broker.topics.persist(), broker.offsets.persist()), f"topic {topic}")
    await broker.known_to_replicas()
    if deleted:
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
        BrokerError: INVALID_PARAMETER, a configuration is not legal; SYSTEM_ERROR, there are too
            many groups, or they could not be saved.
    """
    broker.refuse_changes()
    await in_turns(_checked(check_group_config, configs))
    broker.groups.refuse_too_many(config.group_name for config in configs)
    await in_turns(_changed_groups(broker, configs))
    names = [config.group_name for config in configs]
    await _save(broker.groups.persist(), f"group {_listed(names)}")
    await broker.known_to_replicas()


async def declare(
    broker: BrokerContext,
    topics: Sequence[TopicConfig],
    groups: Sequence[SubscriptionGroupConfig],
) -> None:
    """Make topics and consumer groups, none of them if one is not legal or there is no room.

    Raises:
        BrokerError: as `update_topics` and `update_groups`.
    """
    broker.refuse_changes()
    await in_turns(_checked(check_group_config, groups))
    broker.groups.refuse_too_many(config.group_name for config in groups)
    if topics:
        await update_topics(broker, topics)
    if groups:
        await update_groups(broker, groups)


async def delete_group(broker: BrokerContext, group: str, *, clean_offset: bool) -> None:
    """Remove a consumer group, and its offsets if asked to; an unknown one is no error.

    Raises:
        BrokerError: INVALID_PARAMETER, no group can have that name; SYSTEM_ERROR, the change could
            not be saved.
    """
    broker.refuse_changes()
    if broker.groups.select(group) is None:
        _refuse_illegal(check_group, group)
    if clean_offset:
        refuse_own_group(group)
    broker.groups.delete(group)
    broker.stats.forget_group(group)
    if clean_offset:
        broker.offsets.remove_group(group)
    await _save(asyncio.gather(broker.groups.persist(), broker.offsets.persist()), f"group {group}")
    await broker.known_to_replicas()


async def delete_offsets(broker: BrokerContext, group: str, topic: str) -> bool:
    """Forget a group's offsets in one topic, which it consumes no longer; tell whether it had any.

    Raises:
        BrokerError: INVALID_PARAMETER, connected members subscribe to the topic, or no group or
            topic can have that name; SYSTEM_ERROR, the change could not be saved.
    """
    broker.refuse_changes()
    refuse_own_group(group)
    if topic not in broker.offsets.topics_of(group):
        _refuse_illegal(check_group, group)
        _refuse_illegal(check_topic, topic)
    if broker.consumers.find_subscription(group, topic) is not None:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"connected members of group {group} subscribe to topic {topic}: stop them first",
        )
    deleted = broker.offsets.remove(group, topic)
    await _save(broker.offsets.persist(), f"what group {group} has read of topic {topic}")
    await broker.known_to_replicas()
    return deleted


def _pop_retry_topics(broker: BrokerContext, topic: str) -> Generator[None, None, list[str]]:
    """Find the topics in which RocketMQ 5 retries a topic's messages group by group."""
    found = []
    for group in broker.offsets.groups_of(topic):
        names = (f"{RETRY_PREFIX}{group}{separator}{topic}" for separator in "+_")
        found += [name for name in names if broker.topics.select(name) is not None]
        yield
    return found


async def forget_topics(broker: BrokerContext, names: Sequence[str]) -> None:
    """Remove the queues of topics that are in no table any more, a few at a time.

    Nobody can make them anew meanwhile.

    Raises:
        BrokerError: SYSTEM_ERROR, the queues could not be removed; SYSTEM_BUSY, another request
            removes them.
        IllegalMessageError: no topic can have that name.
    """
    going = broker.topics.going
    if not going.isdisjoint(names):
        raise BrokerError(
            ResponseCode.SYSTEM_BUSY, f"topic {names[-1]} is being deleted by another request"
        )
    going.update(names)
    try:
        for name in names:
            await in_turns(broker.offsets.remove_topic_steps(name))
            broker.stats.forget_topic(name)
            await in_turns(broker.store.delete_topic_steps(name))
            # Replicas hear of it before they get anything that is stored from now on.
            broker.topic_deleted(name)
            await on_thread(broker.store.runners.files, broker.store.deletion_job())
    except OSError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"topic {name} is deleted, but its queues are not ({error.strerror or error}); "
            "delete it once more when the disk works",
        ) from error
    finally:
        going.difference_update(names)


def _checked(check: Callable[[_T], None], configs: Sequence[_T]) -> Generator[None, None, None]:
    try:
        for config in configs:
            check(config)
            yield
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error


def _changed_topics(
    broker: BrokerContext, configs: Sequence[TopicConfig]
) -> Generator[None, None, bool]:
    """Change the topics that are there; return whether one was another before."""
    changed = False
    for config in configs:
        if broker.topics.select(config.topic_name) is not None:
            changed |= broker.topics.update(config)
        yield
    return changed


def _changed_groups(
    broker: BrokerContext, configs: Sequence[SubscriptionGroupConfig]
) -> Generator[None, None, None]:
    for config in configs:
        broker.groups.update(config)
        yield


def _listed(names: Sequence[str]) -> str:
    """Name what changed, a few of many."""
    more = f" and {len(names) - _NAMES_LISTED} more" if len(names) > _NAMES_LISTED else ""
    return ", ".join(names[:_NAMES_LISTED]) + more


def _refuse_illegal(check: Callable[[str], None], name: str) -> None:
    try:
        check(name)
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error


async def _save(saving: Awaitable[object], subject: str) -> None:
    try:
        await saving
    except OSError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"{subject} is changed, but that could not be saved ({error.strerror or error}) and "
            "would be lost with a restart; saving is tried again every few seconds",
        ) from error
