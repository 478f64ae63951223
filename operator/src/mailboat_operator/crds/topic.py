"""The Topic: a topic on all groups of a Broker."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from mailboat.errors import IllegalMessageError
from mailboat.model.names import (
    DLQ_PREFIX,
    MAX_TOPIC_LENGTH,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    check_topic,
    is_retry_or_dlq,
    is_system_topic,
)
from mailboat_operator.crds.common import (
    RESOURCE_NAME_PATTERN,
    TOPIC_NAME_PATTERN,
    Object,
    Rule,
    invalid,
    parse_object,
)

QUEUES_MAX: Final = 1024

_OWN_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX)


class QueuesSpec(msgspec.Struct, frozen=True, rename="camel"):
    """How many queues a topic has on each group."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.write <= self.read",
            message="queues.write must not be above queues.read: nobody would read the rest",
            field=".write",
        ),
    )

    read: Annotated[int, Meta(description="Queues that consumers read.", ge=1, le=QUEUES_MAX)] = 8
    write: Annotated[
        int,
        Meta(
            description="Queues that producers write; at most read. To have fewer queues, lower"
            " write first, and read once the rest is consumed.",
            ge=1,
            le=QUEUES_MAX,
        ),
    ] = 8

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if self.write > self.read:
            raise ValueError("write must not be above read: nobody would read the rest")


class TopicSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a Topic should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.brokerRef == oldSelf.brokerRef",
            message="spec.brokerRef cannot be changed: make a new Topic for another Broker",
            field=".brokerRef",
        ),
        Rule(
            cel="has(self.topicName) == has(oldSelf.topicName)"
            " && (!has(self.topicName) || self.topicName == oldSelf.topicName)",
            message="spec.topicName cannot be changed, added or removed: make a new Topic",
            field=".topicName",
        ),
        Rule(
            cel="!has(self.topicName) || !("
            + " || ".join(f"self.topicName.startsWith('{prefix}')" for prefix in _OWN_PREFIXES)
            + f" || self.topicName in [{', '.join(map(repr, sorted(SYSTEM_TOPICS)))}])",
            message="spec.topicName must not be a topic of a consumer group or of the broker"
            " itself",
            field=".topicName",
        ),
    )

    broker_ref: Annotated[
        str,
        Meta(
            description="Name of the Broker, in the same namespace, that the topic is on. Cannot"
            " be changed.",
            min_length=1,
            max_length=253,
            pattern=RESOURCE_NAME_PATTERN,
        ),
    ]
    topic_name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC_LENGTH, pattern=TOPIC_NAME_PATTERN)]
        | None,
        Meta(
            description="Name of the topic in RocketMQ, which also takes upper case, _, % and |."
            " Default: the Topic's name. Cannot be changed."
        ),
    ] = None
    queues: Annotated[
        QueuesSpec, Meta(description="How many queues the topic has on each group.")
    ] = QueuesSpec()
    perm: Annotated[
        Literal["RW", "R", "W"],
        Meta(description="What clients may do: read and write, only read, only write."),
    ] = "RW"
    reclaim_policy: Annotated[
        Literal["Retain", "Delete"],
        Meta(description="What becomes of the topic and its messages when the Topic is deleted."),
    ] = "Retain"


class Topic(Object[TopicSpec], frozen=True):
    """A topic on every group of a Broker."""

    KIND: ClassVar[str] = "Topic"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.spec.topicName)"
            f" || (self.metadata.name.size() <= {MAX_TOPIC_LENGTH}"
            " && !self.metadata.name.contains('.'))",
            message=f"metadata.name has a dot or more than {MAX_TOPIC_LENGTH} characters, which no"
            " topic may have: give spec.topicName",
            field=".metadata.name",
        ),
    )


def parse_topic(manifest: Mapping[str, Any]) -> Topic:
    """Turn a manifest into a Topic.

    Raises:
        InvalidResourceError: a field is missing, of a wrong type, or breaks a rule.
    """
    topic = parse_object(Topic, TopicSpec, manifest)
    field = "metadata.name" if topic.spec.topic_name is None else "spec.topicName"
    name = topic_name_of(topic)
    if is_retry_or_dlq(name) or is_system_topic(name):
        raise invalid(topic, field, f"{name} is the broker's own topic; give another name")
    try:
        check_topic(name)
    except IllegalMessageError as problem:
        raise invalid(topic, field, str(problem)) from None
    return topic


def topic_name_of(topic: Topic) -> str:
    """Return the topic's name in RocketMQ."""
    return topic.spec.topic_name or topic.metadata.name
