"""What each request needs: one row for every code that a broker or a name server answers.

A row reads the needs out of the request itself, with the decoders that carry it out, so that what
is judged is what is done. Requests about a stored message are judged by the topic of the record at
the offset that they name, and by the field that names a topic where there is one: whoever may read
one topic must not get at the messages of another by their offsets.

`%RETRY%group` belongs to the group: reading and writing it needs `Sub` of that group, taken from
the name and from no field. `%DLQ%group` is a topic like any other.

The rows follow RocketMQ's after its 5.5.0 was mended (apache/rocketmq auth/authorization/builder/
DefaultAuthorizationContextBuilder.java and the annotations of remoting/protocol/header/*.java,
develop of 2026-09), where a request without a row is refused. Ours differ where a stock consumer
would not work (12 and 29 to 33 take `Sub` too), and where others would be harmed: 309 has another
client consume a message, so it needs `Update` of its group; 314 shows how far the source group has
read. Name servers of RocketMQ check nothing.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from mailboat.errors import (
    BrokerError,
    ConfigError,
    IllegalMessageError,
    MailboatError,
    ProtocolError,
)
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.names import RETRY_PREFIX
from mailboat.protocol.admin_bodies import decode_group_configs, decode_topic_configs
from mailboat.protocol.bodies import decode_properties_text, decode_request
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, required_int
from mailboat.protocol.group_table import decode_group_config
from mailboat.protocol.heartbeat import decode_check_client_config, decode_heartbeat
from mailboat.protocol.lock_batch import decode_lock_names
from mailboat.security.access import Action, Need, ResourceKind

Needs: TypeAlias = tuple[Need, ...]
"""All of them are needed; an empty one asks for a valid signature alone."""

Row: TypeAlias = Callable[[RemotingCommand], Needs]
"""Reads what a request needs; raises BrokerError where that cannot be told."""

TopicsAt: TypeAlias = Callable[[int], tuple[str, str] | None]
"""Returns the topic of the record at a physical offset, and the topic that it is meant for where it
is parked elsewhere (half messages); None where no record begins."""

ALL_NAMES: Final = "*"
"""Name of a need that is about all topics, groups or clusters."""

_PUB: Final = frozenset({Action.PUB})
_SUB: Final = frozenset({Action.SUB})
_GET: Final = frozenset({Action.GET})
_LIST: Final = frozenset({Action.LIST})
_CREATE: Final = frozenset({Action.CREATE})
_UPDATE: Final = frozenset({Action.UPDATE})
_DELETE: Final = frozenset({Action.DELETE})
_SUB_OR_GET: Final = frozenset({Action.SUB, Action.GET})
_SUB_OR_UPDATE: Final = frozenset({Action.SUB, Action.UPDATE})
_PUB_SUB_OR_GET: Final = frozenset({Action.PUB, Action.SUB, Action.GET})
# Needs of the last so many names are kept made: making one takes as long as judging it.
_KEPT: Final = 4_096
# What a client of as many groups as one may have asks for, each with a few topics. Judging takes
# microseconds each, and nobody else has a turn meanwhile.
_NEEDS_MAX: Final = 3_000
# More than a retry topic of the longest group has.
_NAME_MAX: Final = 512

_SHORT_NAME_SENDS: Final = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
_LONG_NAME_SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
_SHORT_TOPIC: Final = "b"

AUDITED_CODES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)
"""Administrative requests: each that is allowed is a line of the audit log."""


class _RequestMode(msgspec.Struct, rename="camel"):
    topic: str
    consumer_group: str


_request_mode: Final = msgspec.json.Decoder(_RequestMode, strict=False)


def needs_of(row: Row, command: RemotingCommand) -> Needs:
    """Return what a request needs.

    Raises:
        BrokerError: NO_PERMISSION, the request does not say what it is about.
    """
    try:
        return row(command)
    except BrokerError as error:
        if error.code == ResponseCode.NO_PERMISSION:
            raise
        raise BrokerError(ResponseCode.NO_PERMISSION, _unreadable(error.remark)) from error
    except (ProtocolError, IllegalMessageError, ConfigError) as error:
        raise BrokerError(ResponseCode.NO_PERMISSION, _unreadable(str(error))) from error


def _unreadable(reason: str) -> str:
    return f"parse authorization context error. {reason}"


@lru_cache(_KEPT)
def send_needs(topic: str) -> Needs:
    """Return what a message to a topic needs."""
    if topic.startswith(RETRY_PREFIX):
        return (_group(topic.removeprefix(RETRY_PREFIX), _SUB),)
    return (_topic(topic, _PUB),)


@lru_cache(_KEPT)
def pull_needs(topic: str, group: str) -> Needs:
    """Return what a pull needs.

    Raises:
        BrokerError: NO_PERMISSION, the topic is the retry topic of another group.
    """
    if topic.startswith(RETRY_PREFIX):
        if topic.removeprefix(RETRY_PREFIX) != group:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, "retry topic does not match consumer group."
            )
        return (_group(group, _SUB),)
    return (_topic(topic, _SUB), _group(group, _SUB))


def broker_rows(cluster_name: str, topics_at: TopicsAt) -> Mapping[int, Row]:
    """Return the rows of a broker's requests.

    Args:
        cluster_name: what rules about the broker itself name.
        topics_at: looks into the store.
    """
    return {
        **_rows_of_clients(),
        **_rows_of_stored_messages(topics_at),
        **_rows_of_topics(),
        **_rows_of_groups(),
        **_rows_of_broker(cluster_name),
    }


def _rows_of_clients() -> dict[int, Row]:
    """Return the rows of what producers and consumers do, but for stored messages."""
    code = RequestCode
    reads_topic = _reads("topic", _SUB_OR_GET)
    return {
        **dict.fromkeys(_SHORT_NAME_SENDS, _send(_SHORT_TOPIC)),
        **dict.fromkeys(_LONG_NAME_SENDS, _send("topic")),
        code.PULL_MESSAGE: _pull,
        code.LITE_PULL_MESSAGE: _pull,
        code.QUERY_MESSAGE: reads_topic,
        code.SEARCH_OFFSET_BY_TIMESTAMP: reads_topic,
        code.GET_MAX_OFFSET: reads_topic,
        code.GET_MIN_OFFSET: reads_topic,
        code.GET_EARLIEST_MSG_STORETIME: reads_topic,
        code.QUERY_CONSUMER_OFFSET: _both("topic", "consumerGroup", _SUB_OR_GET),
        code.UPDATE_CONSUMER_OFFSET: _both("topic", "consumerGroup", _SUB_OR_UPDATE),
        code.HEART_BEAT: _heartbeat,
        # Whoever leaves can only take its own connection out.
        code.UNREGISTER_CLIENT: _fixed(),
        code.CHECK_CLIENT_CONFIG: _check_client,
        code.GET_CONSUMER_LIST_BY_GROUP: _of_group("consumerGroup", _SUB_OR_GET),
        code.LOCK_BATCH_MQ: _locks,
        code.UNLOCK_BATCH_MQ: _locks,
    }


def named_place(command: RemotingCommand) -> int | None:
    """Return the physical offset of the message by which a request is judged, None where it is not
    judged by one, or does not name it as it should."""
    read = _PLACES.get(command.code)
    if read is None:
        return None
    try:
        return read(command)
    except MailboatError:
        return None  # Whoever judges it refuses it.


def _rows_of_stored_messages(topics_at: TopicsAt) -> dict[int, Row]:
    """Return the rows of requests that name a message by its offset."""
    code = RequestCode

    def record_topic(physical_offset: int) -> str:
        return _found(topics_at(physical_offset), physical_offset)[0]

    def meant_topic(physical_offset: int) -> str:
        return _found(topics_at(physical_offset), physical_offset)[1]

    def view_message(command: RemotingCommand) -> Needs:
        at_offset = record_topic(required_int(command, "offset"))
        return _each(_readable, _with_field(command, "topic", at_offset), _SUB_OR_GET)

    def send_back(command: RemotingCommand) -> Needs:
        at_offset = record_topic(required_int(command, "offset"))
        topics = _with_field(command, "originTopic", at_offset)
        return (_group(_text(command, "group"), _SUB), *_each(_readable, topics, _SUB))

    def end_transaction(command: RemotingCommand) -> Needs:
        at_offset = meant_topic(required_int(command, "commitLogOffset"))
        return _each(_topic, _with_field(command, "topic", at_offset), _PUB)

    def resume_half(command: RemotingCommand) -> Needs:
        at_offset = meant_topic(_offset_of_id(command))
        return _each(_topic, _with_field(command, "topic", at_offset), _UPDATE)

    def consume_directly(command: RemotingCommand) -> Needs:
        at_offset = record_topic(_offset_of_id(command))
        topics = _with_field(command, "topic", at_offset)
        group = _group(_text(command, "consumerGroup"), _UPDATE)
        return (group, *_each(_readable, topics, _SUB_OR_GET))

    return {
        code.VIEW_MESSAGE_BY_ID: view_message,
        code.CONSUMER_SEND_MSG_BACK: send_back,
        code.END_TRANSACTION: end_transaction,
        code.RESUME_CHECK_HALF_MESSAGE: resume_half,
        code.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    }


def _rows_of_topics() -> dict[int, Row]:
    """Return the rows of the administration of topics."""
    code = RequestCode
    list_topics = _fixed(_topic(ALL_NAMES, _LIST))
    get_topic = _reads("topic", _GET)
    return {
        code.UPDATE_AND_CREATE_TOPIC: _of_topic("topic", _CREATE),
        code.UPDATE_AND_CREATE_STATIC_TOPIC: _of_topic("topic", _CREATE),
        code.UPDATE_AND_CREATE_TOPIC_LIST: _create_topics,
        code.DELETE_TOPIC_IN_BROKER: _of_topic("topic", _DELETE),
        code.GET_ALL_TOPIC_CONFIG: list_topics,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: list_topics,
        code.GET_TOPIC_STATS_INFO: get_topic,
        code.GET_TOPIC_CONFIG: get_topic,
        code.QUERY_TOPIC_CONSUME_BY_WHO: get_topic,
        code.QUERY_CONSUME_QUEUE: _consume_queue,
        code.GET_TIMER_METRICS: list_topics,
    }


def _rows_of_groups() -> dict[int, Row]:
    """Return the rows of the administration of groups."""
    code = RequestCode
    list_groups = _fixed(_group(ALL_NAMES, _LIST))
    return {
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _create_group,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _create_groups,
        code.DELETE_SUBSCRIPTIONGROUP: _of_group("groupName", _DELETE),
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: list_groups,
        code.GET_SUBSCRIPTIONGROUP_CONFIG: _of_group("group", _GET),
        code.GET_CONSUMER_CONNECTION_LIST: _of_group("consumerGroup", _GET),
        code.GET_CONSUMER_RUNNING_INFO: _of_group("consumerGroup", _GET),
        code.GET_CONSUME_STATS: _consume_stats,
        code.QUERY_TOPICS_BY_CONSUMER: _of_group("group", _GET),
        code.QUERY_SUBSCRIPTION_BY_CONSUMER: _both("topic", "group", _GET),
        code.QUERY_CONSUME_TIME_SPAN: _both("topic", "group", _GET),
        code.INVOKE_BROKER_TO_RESET_OFFSET: _both("topic", "group", _UPDATE),
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both("topic", "group", _GET),
        code.QUERY_CORRECTION_OFFSET: _both("topic", "compareGroup", _GET),
        code.CLONE_GROUP_OFFSET: _clone_offsets,
        code.UPDATE_AND_GET_GROUP_FORBIDDEN: _both("topic", "group", _UPDATE),
        # It answers that there is none, whoever asks, and clients then balance by themselves.
        code.QUERY_ASSIGNMENT: _fixed(),
        code.SET_MESSAGE_REQUEST_MODE: _set_mode,
        code.GET_ALL_MESSAGE_REQUEST_MODE: list_groups,
        code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _cold_limits,
        code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _cold_limit,
        code.GET_COLD_DATA_FLOW_CTR_INFO: list_groups,
    }


def _rows_of_broker(cluster_name: str) -> dict[int, Row]:
    """Return the rows of what is about the broker as a whole."""
    code = RequestCode
    get_cluster = _fixed(_cluster(cluster_name, _GET))
    update_cluster = _fixed(_cluster(cluster_name, _UPDATE))
    return {
        **dict.fromkeys(
            (
                code.GET_BROKER_CONFIG,
                code.GET_BROKER_RUNTIME_INFO,
                code.GET_ALL_CONSUMER_OFFSET,
                code.GET_ALL_DELAY_OFFSET,
                code.GET_TIMER_CHECK_POINT,
                code.GET_PRODUCER_CONNECTION_LIST,
                code.GET_ALL_PRODUCER_INFO,
                code.VIEW_BROKER_STATS_DATA,
                code.GET_BROKER_CONSUME_STATS,
                code.GET_BROKER_HA_STATUS,
                code.GET_BROKER_EPOCH_CACHE,
                code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
                code.AUTH_GET_USER,
                code.AUTH_LIST_USER,
                code.AUTH_GET_ACL,
                code.AUTH_LIST_ACL,
            ),
            get_cluster,
        ),
        **dict.fromkeys(
            (
                code.UPDATE_BROKER_CONFIG,
                code.CLEAN_EXPIRED_CONSUMEQUEUE,
                code.CLEAN_UNUSED_TOPIC,
                code.DELETE_EXPIRED_COMMITLOG,
                code.SET_COMMITLOG_READ_MODE,
                code.RESET_MASTER_FLUSH_OFFSET,
                code.POP_ROLLBACK,
                code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
                code.ADD_BROKER,
                code.REMOVE_BROKER,
                code.AUTH_CREATE_USER,
                code.AUTH_UPDATE_USER,
                code.AUTH_DELETE_USER,
                code.AUTH_CREATE_ACL,
                code.AUTH_UPDATE_ACL,
                code.AUTH_DELETE_ACL,
                code.UPDATE_AND_CREATE_ACL_CONFIG,
                code.DELETE_ACL_CONFIG,
                code.GET_BROKER_CLUSTER_ACL_INFO,
                code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
                code.GET_BROKER_CLUSTER_ACL_CONFIG,
            ),
            update_cluster,
        ),
    }


def namesrv_rows() -> Mapping[int, Row]:
    """Return the rows of a name server's requests.

    Routes are needed by whoever may do anything with a topic. All else is for brokers, which sign
    with inner credentials, and administrators; a name server belongs to no cluster, so that its own
    matters need a rule for all of them.
    """
    code = RequestCode
    get_cluster = _fixed(_cluster(ALL_NAMES, _GET))
    update_cluster = _fixed(_cluster(ALL_NAMES, _UPDATE))
    list_topics = _fixed(_topic(ALL_NAMES, _LIST))
    return {
        code.GET_ROUTEINFO_BY_TOPIC: _reads("topic", _PUB_SUB_OR_GET),
        **dict.fromkeys(
            (
                code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
                code.GET_TOPICS_BY_CLUSTER,
                code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
                code.GET_UNIT_TOPIC_LIST,
                code.GET_HAS_UNIT_SUB_TOPIC_LIST,
                code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            ),
            list_topics,
        ),
        **dict.fromkeys(
            (
                code.GET_KV_CONFIG,
                code.GET_KVLIST_BY_NAMESPACE,
                code.GET_BROKER_CLUSTER_INFO,
                code.GET_BROKER_MEMBER_GROUP,
                code.GET_NAMESRV_CONFIG,
            ),
            get_cluster,
        ),
        **dict.fromkeys(
            (
                code.PUT_KV_CONFIG,
                code.DELETE_KV_CONFIG,
                code.REGISTER_BROKER,
                code.UNREGISTER_BROKER,
                code.BROKER_HEARTBEAT,
                code.QUERY_DATA_VERSION,
                code.WIPE_WRITE_PERM_OF_BROKER,
                code.ADD_WRITE_PERM_OF_BROKER,
                code.DELETE_TOPIC_IN_NAMESRV,
                code.REGISTER_TOPIC_IN_NAMESRV,
                code.UPDATE_NAMESRV_CONFIG,
            ),
            update_cluster,
        ),
    }


# -- single needs -----------------------------------------------------------------------------


def _topic(name: str, actions: frozenset[Action]) -> Need:
    return Need(ResourceKind.TOPIC, _named("topic", name), actions)


def _group(name: str, actions: frozenset[Action]) -> Need:
    return Need(ResourceKind.GROUP, _named("group", name), actions)


def _cluster(name: str, actions: frozenset[Action]) -> Need:
    return Need(ResourceKind.CLUSTER, name, actions)


def _readable(topic: str, actions: frozenset[Action]) -> Need:
    """Return the need of a topic that is read; a retry topic is its group's."""
    if topic.startswith(RETRY_PREFIX):
        return _group(topic.removeprefix(RETRY_PREFIX), actions)
    return _topic(topic, actions)


def _named(kind: str, name: str) -> str:
    """Return a name; rules are matched against plain names only."""
    if not name.strip():
        raise BrokerError(ResponseCode.NO_PERMISSION, f"{kind} is null.")
    if len(name) > _NAME_MAX:
        # Nothing is called so; the name would stand in the answer, the log and the audit log.
        text = f"The name of the {kind} has {len(name)} characters."
        raise BrokerError(ResponseCode.NO_PERMISSION, _unreadable(text))
    return name


def _text(command: RemotingCommand, field: str) -> str:
    value = command.ext_fields.get(field)
    if value is None:
        raise BrokerError(ResponseCode.NO_PERMISSION, _unreadable(f"There is no {field}."))
    return value


def _with_field(command: RemotingCommand, field: str, name: str) -> set[str]:
    """Return a name and the one in a field, where there is one."""
    other = command.ext_fields.get(field)
    return {name, other} if other else {name}


def _refuse_many(count: int) -> None:
    """Refuse a request that would take long to judge.

    Raises:
        BrokerError: NO_PERMISSION, it is about too much.
    """
    if count > _NEEDS_MAX:
        text = f"The request is about {count} topics and groups, more than {_NEEDS_MAX}."
        raise BrokerError(ResponseCode.NO_PERMISSION, _unreadable(text))


def _each(
    make: Callable[[str, frozenset[Action]], Need],
    names: Collection[str],
    actions: frozenset[Action],
) -> Needs:
    _refuse_many(len(names))
    return tuple(make(name, actions) for name in sorted(names))


def _offset_of_id(command: RemotingCommand) -> int:
    return decode_offset_message_id(_text(command, "msgId")).physical_offset


_PLACES: Final[dict[int, Callable[[RemotingCommand], int]]] = {
    RequestCode.VIEW_MESSAGE_BY_ID: lambda command: required_int(command, "offset"),
    RequestCode.CONSUMER_SEND_MSG_BACK: lambda command: required_int(command, "offset"),
    RequestCode.END_TRANSACTION: lambda command: required_int(command, "commitLogOffset"),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _offset_of_id,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _offset_of_id,
}


def _found(topics: tuple[str, str] | None, physical_offset: int) -> tuple[str, str]:
    if topics is None:
        raise BrokerError(
            ResponseCode.NO_PERMISSION,
            _unreadable(f"There is no message at offset {physical_offset}."),
        )
    return topics


# -- rows -------------------------------------------------------------------------------------


def _fixed(*needs: Need) -> Row:
    return lambda _command: needs


def _send(field: str) -> Row:
    return lambda command: send_needs(_text(command, field))


def _pull(command: RemotingCommand) -> Needs:
    return pull_needs(_text(command, "topic"), _text(command, "consumerGroup"))


def _of_topic(field: str, actions: frozenset[Action]) -> Row:
    return lambda command: (_topic(_text(command, field), actions),)


def _of_group(field: str, actions: frozenset[Action]) -> Row:
    return lambda command: (_group(_text(command, field), actions),)


def _reads(field: str, actions: frozenset[Action]) -> Row:
    return lambda command: (_readable(_text(command, field), actions),)


def _both(topic_field: str, group_field: str, actions: frozenset[Action]) -> Row:
    def row(command: RemotingCommand) -> Needs:
        topic = _readable(_text(command, topic_field), actions)
        return (topic, _group(_text(command, group_field), actions))

    return row


def _heartbeat(command: RemotingCommand) -> Needs:
    """Return `Sub` of each group and subscription; producers need nothing before they send."""
    needs: dict[Need, None] = {}
    for consumer in decode_heartbeat(command.body).consumer_data_set:
        _refuse_many(len(needs) + len(consumer.subscription_data_set))
        needs[_group(consumer.group_name, _SUB)] = None
        for subscription in consumer.subscription_data_set:
            needs[_readable(subscription.topic, _SUB)] = None
    return tuple(needs)


def _check_client(command: RemotingCommand) -> Needs:
    if not command.body:
        return ()
    check = decode_check_client_config(command.body)
    return (_readable(check.subscription_data.topic, _SUB), _group(check.group, _SUB))


def _locks(command: RemotingCommand) -> Needs:
    group, topics = decode_lock_names(command.body)
    return (_group(group, _SUB), *_each(_readable, topics, _SUB))


def _create_topics(command: RemotingCommand) -> Needs:
    names = {config.topic_name for config in decode_topic_configs(command.body)}
    return _each(_topic, names, _CREATE)


def _create_group(command: RemotingCommand) -> Needs:
    return (_group(decode_group_config(command.body).group_name, _CREATE),)


def _create_groups(command: RemotingCommand) -> Needs:
    names = {config.group_name for config in decode_group_configs(command.body)}
    return _each(_group, names, _CREATE)


def _consume_queue(command: RemotingCommand) -> Needs:
    topic = _readable(_text(command, "topic"), _GET)
    group = command.ext_fields.get("consumerGroup")
    return (topic, _group(group, _GET)) if group else (topic,)


def _consume_stats(command: RemotingCommand) -> Needs:
    listed = command.ext_fields.get("topicList") or ""
    topics = {name for name in listed.split(";") if name}
    if topic := command.ext_fields.get("topic"):
        topics.add(topic)
    group = _group(_text(command, "consumerGroup"), _GET)
    return (group, *_each(_readable, topics, _GET))


def _clone_offsets(command: RemotingCommand) -> Needs:
    source, target = _text(command, "srcGroup"), _text(command, "destGroup")
    topic = command.ext_fields.get("topic")
    topics = _each(_readable, [topic] if topic else [], _UPDATE)
    return (_group(source, _GET), _group(target, _UPDATE), *topics)


def _set_mode(command: RemotingCommand) -> Needs:
    wanted = decode_request(command.body, _request_mode)
    return (_readable(wanted.topic, _UPDATE), _group(wanted.consumer_group, _UPDATE))


def _cold_limits(command: RemotingCommand) -> Needs:
    return _each(_group, decode_properties_text(command.body), _UPDATE)


def _cold_limit(command: RemotingCommand) -> Needs:
    return (_group(command.body.decode(errors="replace"), _UPDATE),)
