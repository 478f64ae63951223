"""The name server's answer to each of its requests.

Every body is compact JSON with quoted keys whatever the client's version is: fastjson, Go and
JavaScript clients all read it, and it is the only form that is JSON.

Source: apache/rocketmq namesrv/processor/DefaultRequestProcessor.java @ rocketmq-all-5.3.3
"""

import asyncio
import dataclasses
import logging
import zlib
from collections.abc import Awaitable, Callable, Generator, Set
from functools import partial
from typing import Any, Final, cast

from mailboat.config import (
    NamesrvConfig,
    Settings,
    check_value,
    properties_of,
    role_settings,
)
from mailboat.errors import BrokerError, ConfigError, PlaceTakenError
from mailboat.model.order_config import ORDER_NAMESPACE
from mailboat.namesrv.kv_config import KvConfigManager
from mailboat.namesrv.registrations import BrokerAddress, MasterOfGroup, Registration
from mailboat.namesrv.route_info import (
    UNIT_FLAG,
    UNIT_SUB_FLAG,
    RouteInfoManager,
    TopicsFound,
)
from mailboat.protocol.bodies import (
    LENIENT_REQUEST_MAX_BYTES,
    decode_data_version,
    decode_properties_text,
    encode_body,
    encode_data_version,
    encode_kv_table,
    encode_properties_text,
    encode_topic_list,
    topic_list_slices,
)
from mailboat.protocol.broker_listeners import LISTENERS_FIELD, decode_listeners
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_bool,
    optional_int,
    optional_str,
    required_int,
    required_name,
    required_str,
)
from mailboat.protocol.register_broker import (
    HELD_BY_FIELD,
    IDENTITY_FIELD,
    TableSlices,
    register_broker_slices,
)
from mailboat.protocol.route import (
    BrokerMemberGroup,
    decode_topic_route,
    encode_cluster_info,
    encode_member_group,
    encode_topic_route,
)
from mailboat.protocol.topic_table import TopicConfigTable
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane, Processor
from mailboat.remoting.turns import first_turn, in_turns, joined_in_turns

_WRITABLE_AT_RUNTIME: Final = (
    "orderMessageEnable",
    "returnOrderTopicConfigToBroker",
    "deleteTopicWithBrokerRegistration",
)
"""Keys that UPDATE_NAMESRV_CONFIG may change: switches that are safe to take from any client."""

_LISTINGS: Final = frozenset(
    {
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    }
)
_CRC_MASK: Final = 0x7FFFFFFF
_IDENTITY_LENGTH: Final = 128
# Bytes as JSON. The name of a host has up to 253 characters. All brokers are in the answer to
# GET_BROKER_CLUSTER_INFO, which must fit a frame.
_NAME_BYTES: Final = 512
_MAX_ABSENCE_S: Final = 3600.0
"""Longest time for which a broker that says nothing keeps its place: more than any restart takes.
It is the limit of `routeKeptSeconds`."""

_ZLIB_START: Final = b"\x78"  # No JSON text begins with it.

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Turn:
    """The requests of one broker that wait for a registration of its which is being read."""

    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    count: int = 0


class NamesrvProcessor:
    """Translates requests to the tables and their contents back."""

    def __init__(
        self, settings: Settings, *, routes: RouteInfoManager, kv_config: KvConfigManager
    ) -> None:
        """Answer from these tables."""
        self._settings = settings
        self._routes = routes
        self._kv_config = kv_config
        self._turns: dict[BrokerAddress, _Turn] = {}

    def register(self, dispatcher: Dispatcher) -> None:
        """Make this the processor of every name-server request."""
        processors: dict[int, Processor] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv_config,
            RequestCode.GET_KV_CONFIG: self._get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv_config,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._get_cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._get_member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._list_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._list_topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._list_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics(UNIT_FLAG, UNIT_FLAG),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics(
                UNIT_SUB_FLAG, UNIT_SUB_FLAG
            ),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics(
                UNIT_FLAG | UNIT_SUB_FLAG, UNIT_SUB_FLAG
            ),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }
        for code, processor in processors.items():
            lane = Lane.LISTING if code in _LISTINGS else Lane.COMMON
            dispatcher.register(code, processor, lane)

    async def _put_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        await self._kv_config.put(
            required_str(request, "namespace"),
            required_str(request, "key"),
            required_str(request, "value"),
        )
        return request.response(ResponseCode.SUCCESS)

    def _get_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        namespace, key = required_str(request, "namespace"), required_str(request, "key")
        value = self._kv_config.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return request.response(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.response(ResponseCode.SUCCESS, ext_fields={"value": value})

    async def _delete_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        namespace, key = required_str(request, "namespace"), required_str(request, "key")
        await self._kv_config.delete(namespace, key)
        return request.response(ResponseCode.SUCCESS)

    def _list_kv_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        namespace = required_str(request, "namespace")
        table = self._kv_config.namespace(namespace)
        if table is None:
            remark = f"No config item, Namespace: {namespace}"
            return request.response(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.response(ResponseCode.SUCCESS, body=encode_kv_table(table))

    def _register_broker(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        place, work = _broker_address(request), self._registering(connection, request)
        if place not in self._turns:
            answer = first_turn(work)
            if answer is not None:
                return answer
        return self._in_turn(place, partial(in_turns, work))

    def _registering(
        self, connection: Connection, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """Read a registration and take it over, a step at a time; return the answer.

        What is short to read may be long to take over: one without topics ends a thousand routes.
        """
        table = yield from _table_slices(request)
        if connection.is_closed:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the broker is gone")
        registration = _registration(connection, request, table)
        master = MasterOfGroup()
        try:
            for known in self._routes.register_in_steps(registration, connection):
                master = known
                yield
        except PlaceTakenError as error:
            return _place_taken(request, error)
        if connection.is_closed:
            # It ended before the broker was in the table, and will not end again.
            self._routes.connection_closed(connection)
        return self._answer(request, master)

    def _in_turn(
        self, place: BrokerAddress, work: Callable[[], Awaitable[RemotingCommand]]
    ) -> Awaitable[RemotingCommand]:
        """Do what takes a while; what the same broker asks for meanwhile waits behind it."""
        turn = self._turns.setdefault(place, _Turn())
        turn.count += 1

        async def begin() -> RemotingCommand:
            try:
                async with turn.lock:
                    return await work()
            finally:
                turn.count -= 1
                if not turn.count:
                    del self._turns[place]

        return begin()

    def _answer(self, request: RemotingCommand, master: MasterOfGroup) -> RemotingCommand:
        body = b""
        if self._settings.namesrv.return_order_topic_config_to_broker:
            orders = self._kv_config.namespace(ORDER_NAMESPACE)
            body = b"" if orders is None else encode_kv_table(orders)
        return request.response(
            ResponseCode.SUCCESS,
            ext_fields={
                "haServerAddr": master.ha_server_address,
                "masterAddr": master.address,
            },
            body=body,
        )

    def _unregister_broker(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        place = _broker_address(request)
        if place not in self._turns:
            return self._unregister(request)
        return self._in_turn(place, partial(self._unregister_last, request))

    async def _unregister_last(self, request: RemotingCommand) -> RemotingCommand:
        return self._unregister(request)

    def _unregister(self, request: RemotingCommand) -> RemotingCommand:
        required_int(request, "brokerId")
        key, name = _broker_address(request), required_name(request, "brokerName")
        kept_s = _route_kept_s(request)
        logger.info("broker unregistered name=%s route_kept_s=%g %s", name, kept_s, key)
        self._routes.unregister(key, name, route_kept_s=kept_s)
        return request.response(ResponseCode.SUCCESS)

    def _broker_heartbeat(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        self._routes.refresh(_broker_address(request))
        return request.response(ResponseCode.SUCCESS)

    def _query_data_version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        key = _broker_address(request)
        changed = self._routes.is_changed(key, decode_data_version(request.body))
        self._routes.refresh(key)
        known = self._routes.data_version(key)
        return request.response(
            ResponseCode.SUCCESS,
            ext_fields={"changed": changed},
            body=b"" if known is None else encode_data_version(known),
        )

    def _get_route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = required_name(request, "topic")
        route = self._routes.route(topic, connection.listener)
        if route is None:
            by = f", by listener {connection.listener}" if connection.listener else ""
            remark = f"No topic route info in name server for the topic: {topic}{by}"
            return request.response(ResponseCode.TOPIC_NOT_EXIST, remark)
        if self._settings.namesrv.order_message_enable:
            orders = self._kv_config.get(ORDER_NAMESPACE, topic)
            if orders and connection.listener:
                orders = _of_brokers(orders, {one.broker_name for one in route.broker_datas})
            route.order_topic_conf = orders
        return request.response(ResponseCode.SUCCESS, body=encode_topic_route(route))

    def _get_cluster_info(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        body = encode_cluster_info(self._routes.cluster_info(connection.listener))
        return request.response(ResponseCode.SUCCESS, body=body)

    def _get_member_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        name = required_name(request, "brokerName")
        group = BrokerMemberGroup(
            cluster=required_name(request, "clusterName"),
            broker_name=name,
            broker_addrs=self._routes.broker_addresses(name, connection.listener),
        )
        return request.response(ResponseCode.SUCCESS, body=encode_member_group(group))

    def _wipe_write_permission(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        name = required_name(request, "brokerName")
        count = self._routes.set_write_permission(name, writable=False)
        logger.info("write permission wiped broker=%s topics=%d", name, count)
        return request.response(ResponseCode.SUCCESS, ext_fields={"wipeTopicCount": count})

    def _add_write_permission(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        name = required_name(request, "brokerName")
        count = self._routes.set_write_permission(name, writable=True)
        logger.info("write permission added broker=%s topics=%d", name, count)
        return request.response(ResponseCode.SUCCESS, ext_fields={"addTopicCount": count})

    async def _list_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        return await _topic_list(request, self._routes.topics())

    async def _list_topics_of_cluster(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        cluster = required_name(request, "cluster")
        return await _topic_list(request, self._routes.topics_of_cluster(cluster))

    def _list_system_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        address = self._routes.any_broker_address(connection.listener)
        body = encode_topic_list(self._routes.system_topics(), broker_addr=address)
        return request.response(ResponseCode.SUCCESS, body=body)

    def _unit_topics(self, mask: int, value: int) -> Processor:
        async def answer(_: Connection, request: RemotingCommand) -> RemotingCommand:
            found = self._routes.topics_by_unit_flags(mask=mask, value=value)
            return await _topic_list(request, found)

        return answer

    def _delete_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = required_name(request, "topic")
        self._routes.delete_topic(topic, optional_str(request, "clusterName") or None)
        logger.info("topic deleted topic=%s", topic)
        return request.response(ResponseCode.SUCCESS)

    def _register_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = required_name(request, "topic")
        if len(request.body) > LENIENT_REQUEST_MAX_BYTES:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"the route of topic {topic} has {len(request.body)} bytes; at most "
                f"{LENIENT_REQUEST_MAX_BYTES} are taken",
            )
        self._routes.add_topic(topic, decode_topic_route(request.body).queue_datas)
        return request.response(ResponseCode.SUCCESS)

    def _update_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change switches, all of a request's or none, until the process ends."""
        changes = decode_properties_text(request.body)
        for key in changes:
            if key not in _WRITABLE_AT_RUNTIME:
                raise BrokerError(
                    ResponseCode.NO_PERMISSION,
                    f"{key} cannot be changed while the name server runs; nothing was changed."
                    f" What can be: {', '.join(_WRITABLE_AT_RUNTIME)}",
                )
        known = role_settings("namesrv")
        try:
            values = {known[key].name: check_value(key, changes[key], "namesrv") for key in changes}
        except ConfigError as error:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"{error}; nothing was changed"
            ) from error
        config: NamesrvConfig = dataclasses.replace(self._settings.namesrv, **cast(Any, values))
        self._settings = dataclasses.replace(self._settings, namesrv=config)
        self._routes.delete_unlisted_topics = config.delete_topic_with_broker_registration
        for key, value in changes.items():
            logger.info("setting changed %s=%s", key, value)
        return request.response(ResponseCode.SUCCESS)

    def _get_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        own = properties_of(dataclasses.replace(self._settings, role="namesrv"))
        return request.response(ResponseCode.SUCCESS, body=encode_properties_text(own))


def _of_brokers(orders: str, names: Set[str]) -> str:
    """Return what an order configuration, `broker-a:4;broker-b:4`, says of some brokers."""
    return ";".join(one for one in orders.split(";") if one.partition(":")[0] in names)


async def _topic_list(request: RemotingCommand, found: TopicsFound) -> RemotingCommand:
    """Answer with topics, in the order of their registration: sorting them would take long."""
    topics = await in_turns(found)
    body = await joined_in_turns(topic_list_slices(topics))
    return request.response(ResponseCode.SUCCESS, body=body)


def _broker_address(request: RemotingCommand) -> BrokerAddress:
    return BrokerAddress(
        required_name(request, "clusterName"), required_name(request, "brokerAddr")
    )


def _place_taken(request: RemotingCommand, error: PlaceTakenError) -> RemotingCommand:
    return request.response(error.code, error.remark, ext_fields={HELD_BY_FIELD: error.held_by})


def _table_slices(request: RemotingCommand) -> TableSlices:
    """Read the topics of REGISTER_BROKER, after their checksum where they carry one."""
    expected_crc = optional_int(request, "bodyCrc32", 0)
    if expected_crc not in (0, zlib.crc32(request.body) & _CRC_MASK):
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "the body does not match its bodyCrc32")
    # A RocketMQ 5.5.0 broker with compressedRegister=true says compressed=false of a body that is.
    is_compressed = optional_bool(request, "compressed") or request.body.startswith(_ZLIB_START)
    return register_broker_slices(request.body, compressed=is_compressed)


def _registration(
    connection: Connection, request: RemotingCommand, table: TopicConfigTable
) -> Registration:
    """Put what REGISTER_BROKER says together."""
    key = _broker_address(request)
    for name in ("clusterName", "brokerName", "brokerAddr", "haServerAddr"):
        size_bytes = len(encode_body(required_name(request, name))) - 2
        if size_bytes > _NAME_BYTES:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"{name} takes {size_bytes} bytes as JSON, more than {_NAME_BYTES}",
            )
    timeout_s = optional_int(request, "heartbeatTimeoutMillis", 0) / 1000
    return Registration(
        cluster_name=key.cluster_name,
        broker_name=required_name(request, "brokerName"),
        broker_id=required_int(request, "brokerId"),
        address=key.address,
        host=connection.peer_address,
        ha_server_address=required_str(request, "haServerAddr"),
        data_version=table.data_version,
        topics=table.topic_config_table,
        expired_timeout_s=min(timeout_s, _MAX_ABSENCE_S) if timeout_s > 0 else None,
        route_kept_s=_route_kept_s(request),
        identity=_identity(request),
        listeners=decode_listeners(optional_str(request, LISTENERS_FIELD) or "{}"),
    )


def _identity(request: RemotingCommand) -> str:
    """Read what a broker is known by wherever it runs; only ours says so."""
    identity = optional_str(request, IDENTITY_FIELD) or ""
    if len(identity) > _IDENTITY_LENGTH:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"{IDENTITY_FIELD} has {len(identity)} characters, more than {_IDENTITY_LENGTH}",
        )
    return identity


def _route_kept_s(request: RemotingCommand) -> float:
    """Read how long the routes of a broker that goes are to stay; only ours says so."""
    return min(max(0, optional_int(request, "routeKeptMillis", 0)) / 1000, _MAX_ABSENCE_S)
