"""Every request of the name server, from its frame's fields to the answer's."""

import asyncio
import json
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mailboat.config import load_settings
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.kv_config import KvConfigManager
from mailboat.namesrv.processor import NamesrvProcessor
from mailboat.namesrv.registrations import MasterOfGroup, Registration
from mailboat.namesrv.route_info import RouteInfoManager
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.protocol.register_broker import encode_register_broker
from mailboat.protocol.topic_table import TopicConfigTable
from mailboat.remoting import turns
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.testing.virtual_time import VirtualTime

TABLE = TopicConfigTable(
    DataVersion(3, 1700000000000),
    {"T": TopicConfig("T", 4, 4), "S": TopicConfig("S", 1, 1, topic_sys_flag=2)},
)
IDENTITY: dict[str, ExtValue] = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "brokerId": 0,
    "haServerAddr": "10.0.0.1:10912",
}
OUTSIDE: dict[str, ExtValue] = {**IDENTITY, "mailboatListeners": '{"outside":"192.0.2.7:30920"}'}
SLAVE: dict[str, ExtValue] = {**IDENTITY, "brokerAddr": "10.0.0.2:10911", "brokerId": 1}
# The requests that reference 4.2 lists for a name server.
EVERY_CODE = [
    *range(100, 107),
    205,
    206,
    216,
    217,
    219,
    224,
    304,
    311,
    312,
    313,
    318,
    319,
    322,
    327,
    901,
    904,
]


class Writer:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        """Start empty, and open."""
        self.written = b""
        self.is_closed = False
        self.peer_address = "10.0.0.1"
        self.listener = ""

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.written += data

    def keep(self, size: int) -> None:
        """Note nothing: no budget is looked at here."""

    def release(self, size: int) -> None:
        """Note nothing."""


class NameServer:
    """A name server without a socket; its `clock` stands still unless a test moves it."""

    def __init__(self, **overrides: str) -> None:
        """Answer with settings that differ from the defaults as given."""
        self.clock = VirtualTime()
        self.connection = Writer()
        self.routes = RouteInfoManager(clock=self.clock.monotonic)
        self._dispatcher = Dispatcher()
        NamesrvProcessor(
            load_settings("namesrv", overrides=overrides),
            routes=self.routes,
            kv_config=KvConfigManager(),
        ).register(self._dispatcher)

    def ask(
        self, code: int, ext_fields: dict[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return the answer as a client decodes it."""
        request = RemotingCommand.request(code, ext_fields, body)
        request.opaque = 77
        answer = asyncio.run(self._answer(request))
        [frame] = FrameDecoder().feed(answer)
        command = decode_command(frame)
        assert (command.opaque, command.is_response) == (77, True)
        return command

    async def _answer(self, request: RemotingCommand) -> bytes:
        """Return the answer to a request, which may come later."""
        answer = self._dispatcher.process(cast(Connection, self.connection), request)
        if answer is None:
            await self._dispatcher.drain(10)
            answer, self.connection.written = self.connection.written, b""
        return answer

    def ok(
        self, code: int, ext_fields: dict[str, ExtValue] | None = None, body: bytes = b""
    ) -> Any:
        """Send a request that succeeds and return the JSON of the answer, if it has a body."""
        answer = self.ask(code, ext_fields, body)
        assert (answer.code, answer.remark) == (0, None)
        return json.loads(answer.body) if answer.body else None

    def register(self, identity: dict[str, ExtValue] = IDENTITY) -> RemotingCommand:
        """Register a broker with the topics of TABLE."""
        return self.ask(RequestCode.REGISTER_BROKER, identity, encode_register_broker(TABLE))


@pytest.fixture
def server() -> NameServer:
    """Return a name server that knows one broker."""
    server = NameServer()
    assert server.register().code == 0
    return server


@pytest.mark.parametrize("code", EVERY_CODE)
def test_every_request_of_a_name_server_is_answered(server: NameServer, code: int) -> None:
    """None is "not supported", also when its fields are missing."""
    assert server.ask(code).code != 3


def test_a_route_is_compact_json_with_quoted_ids(server: NameServer) -> None:
    """These exact bytes are what Go cuts apart by hand."""
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert json.loads(answer.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in answer.body


def test_an_unknown_topic_has_no_route(server: NameServer) -> None:
    """Producers fall back to TBW102 on code 17."""
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"})
    assert answer.code == 17
    assert answer.remark == "No topic route info in name server for the topic: none"


def test_a_missing_field_is_named(server: NameServer) -> None:
    """Code 1 and a sentence with the field, never a stack trace."""
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert answer.code == 1
    assert "field 'topic' is missing" in (answer.remark or "")


@pytest.mark.parametrize("compressed", [False, True])
def test_both_forms_of_a_registration_are_read(compressed: bool) -> None:
    """JSON (4.9's default) and the compressed form give the same routes."""
    server = NameServer()
    body = encode_register_broker(TABLE, compressed=compressed)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    fields = {**IDENTITY, "compressed": compressed, "bodyCrc32": crc}
    assert server.ask(RequestCode.REGISTER_BROKER, fields, body).code == 0
    assert server.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": ["T", "S"]}


def test_a_broker_that_ends_while_it_is_registered_is_not_taken_for_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large table is registered in turns. Between two of them its connection may end, which the
    routes are told before the broker is in them."""
    server = NameServer()
    monkeypatch.setattr(turns, "FIRST_TURN_S", 0.0)
    steps = server.routes.register_in_steps

    def ends_first(registration: Registration, connection: Writer) -> Iterator[MasterOfGroup]:
        connection.is_closed = True
        server.routes.connection_closed(connection)
        yield from steps(registration, connection)

    monkeypatch.setattr(server.routes, "register_in_steps", ends_first)
    body = encode_register_broker(TABLE)
    asyncio.run(
        server._answer(RemotingCommand.request(RequestCode.REGISTER_BROKER, IDENTITY, body))
    )
    server.connection = Writer()
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_compressed_body_is_seen_whatever_its_header_says() -> None:
    """RocketMQ 5.5.0 with compressedRegister=true sends such a body with compressed=false."""
    server = NameServer()
    body = encode_register_broker(TABLE, compressed=True)
    fields = {**IDENTITY, "compressed": "false"}
    assert server.ask(RequestCode.REGISTER_BROKER, fields, body).code == 0
    assert server.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": ["T", "S"]}


def test_a_registration_with_a_wrong_checksum_is_refused() -> None:
    """Nothing of it is taken; 0 stands for no checksum."""
    server = NameServer()
    body = encode_register_broker(TABLE)
    answer = server.ask(RequestCode.REGISTER_BROKER, {**IDENTITY, "bodyCrc32": 1}, body)
    assert (answer.code, answer.remark) == (1, "the body does not match its bodyCrc32")
    assert server.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": []}
    zero = server.ask(RequestCode.REGISTER_BROKER, {**IDENTITY, "bodyCrc32": 0}, body)
    assert zero.code == 0


def test_a_body_that_is_none_is_refused() -> None:
    """Code 1 with a sentence."""
    answer = NameServer().ask(RequestCode.REGISTER_BROKER, IDENTITY, b"{nonsense")
    assert answer.code == 1
    assert answer.remark


def test_a_slave_learns_its_master_and_a_master_nothing(server: NameServer) -> None:
    """The fields are there for slaves only."""
    assert server.register().ext_fields == {}
    assert server.register(SLAVE).ext_fields == {
        "masterAddr": "10.0.0.1:10911",
        "haServerAddr": "10.0.0.1:10912",
    }


def test_a_registering_broker_gets_the_order_configurations(server: NameServer) -> None:
    """The body is the KVTable of ORDER_TOPIC_CONFIG, or empty while nobody put one there."""
    assert server.register().body == b""
    fields: dict[str, ExtValue] = {
        "namespace": "ORDER_TOPIC_CONFIG",
        "key": "T",
        "value": "broker-a:4",
    }
    server.ok(RequestCode.PUT_KV_CONFIG, fields)
    assert json.loads(server.register().body) == {"table": {"T": "broker-a:4"}}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_route_carries_the_order_configuration(enabled: bool) -> None:
    """Unless orderMessageEnable is off."""
    server = NameServer(orderMessageEnable=str(enabled).lower())
    server.register()
    fields: dict[str, ExtValue] = {
        "namespace": "ORDER_TOPIC_CONFIG",
        "key": "T",
        "value": "broker-a:2",
    }
    server.ok(RequestCode.PUT_KV_CONFIG, fields)
    route = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert route.get("orderTopicConf") == ("broker-a:2" if enabled else None)


def test_an_odd_order_configuration_is_refused(server: NameServer) -> None:
    """Clients would make room for each queue that it names; other namespaces take any text."""
    fields: dict[str, ExtValue] = {
        "namespace": "ORDER_TOPIC_CONFIG",
        "key": "T",
        "value": "broker-a:3000000000",
    }
    answer = server.ask(RequestCode.PUT_KV_CONFIG, fields)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "topic T: the order configuration cannot have 'broker-a:3000000000'" in str(
        answer.remark
    )
    server.ok(RequestCode.PUT_KV_CONFIG, fields | {"namespace": "other"})


@pytest.mark.parametrize("field", ["routeKeptMillis", "heartbeatTimeoutMillis"])
def test_a_broker_that_says_nothing_keeps_its_place_an_hour_at_most(
    server: NameServer, field: str
) -> None:
    """Whatever it asks for: others wait for the place."""
    server.register({**IDENTITY, field: (1 << 63) - 1})
    if field == "routeKeptMillis":
        server.ok(RequestCode.UNREGISTER_BROKER, {**IDENTITY, field: (1 << 63) - 1})
    server.clock.advance(3600)
    server.routes.drop_silent()
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 0
    server.clock.advance(1)
    server.routes.drop_silent()
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 17


def test_unregistering_ends_the_routes(server: NameServer) -> None:
    """The broker's topics are unknown at once."""
    server.ok(RequestCode.UNREGISTER_BROKER, IDENTITY)
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 17


@pytest.mark.parametrize("how", ["unregistered", "connection lost"])
def test_the_routes_of_a_broker_that_restarts_are_kept(how: str) -> None:
    """It says for how long, in a field that RocketMQ does not know."""
    server = NameServer()
    fields: dict[str, ExtValue] = {**IDENTITY, "routeKeptMillis": 60_000}
    assert server.register(fields).code == 0
    if how == "unregistered":
        server.ok(RequestCode.UNREGISTER_BROKER, fields)
    server.routes.connection_closed(server.connection)
    route = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert [item["perm"] for item in route["queueDatas"]] == [4]


def test_a_negative_time_keeps_no_routes() -> None:
    """It is no time at all."""
    server = NameServer()
    server.register()
    server.ok(RequestCode.UNREGISTER_BROKER, {**IDENTITY, "routeKeptMillis": -1})
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 17


def test_the_cluster_is_shown(server: NameServer) -> None:
    """Brokers by name and names by cluster, ids quoted."""
    server.register(SLAVE)
    assert server.ok(RequestCode.GET_BROKER_CLUSTER_INFO) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"DefaultCluster": ["broker-a"]},
    }


def test_the_members_of_a_broker_name_are_shown(server: NameServer) -> None:
    """An unknown name has no addresses."""
    fields: dict[str, ExtValue] = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    assert server.ok(RequestCode.GET_BROKER_MEMBER_GROUP, fields) == {
        "brokerMemberGroup": {
            "brokerAddrs": {"0": "10.0.0.1:10911"},
            "brokerName": "broker-a",
            "cluster": "DefaultCluster",
        }
    }
    unknown = server.ok(RequestCode.GET_BROKER_MEMBER_GROUP, {**fields, "brokerName": "x"})
    assert unknown["brokerMemberGroup"]["brokerAddrs"] == {}


def test_write_permission_is_wiped_and_added(server: NameServer) -> None:
    """Both answer how many topics they changed."""
    name: dict[str, ExtValue] = {"brokerName": "broker-a"}
    wiped = server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
    assert (wiped.code, wiped.ext_fields) == (0, {"wipeTopicCount": "2"})
    route = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert route["queueDatas"][0]["perm"] == 4
    added = server.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
    assert (added.code, added.ext_fields) == (0, {"addTopicCount": "2"})
    route = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert route["queueDatas"][0]["perm"] == 6


def test_topics_are_listed_by_cluster_and_by_flag(server: NameServer) -> None:
    """Lists that are empty are lists all the same."""
    by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
    assert server.ok(by_cluster, {"cluster": "DefaultCluster"}) == {"topicList": ["T", "S"]}
    assert server.ok(by_cluster, {"cluster": "none"}) == {"topicList": []}
    assert server.ok(RequestCode.GET_UNIT_TOPIC_LIST) == {"topicList": []}
    assert server.ok(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"topicList": ["S"]}
    assert server.ok(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"topicList": ["S"]}


def test_system_topics_come_with_an_address(server: NameServer) -> None:
    """mqadmin asks that broker for the others."""
    assert server.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
        "topicList": ["DefaultCluster", "broker-a"],
        "brokerAddr": "10.0.0.1:10911",
    }


def test_a_topic_is_deleted(server: NameServer) -> None:
    """In the cluster that is named, or everywhere when none is."""
    delete = RequestCode.DELETE_TOPIC_IN_NAMESRV
    server.ok(delete, {"topic": "T", "clusterName": "other"})
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 0
    server.ok(delete, {"topic": "T", "clusterName": ""})
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 17


def test_a_topic_is_registered_by_its_route(server: NameServer) -> None:
    """A route that one name server gave can be given to another."""
    route = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body
    server.ok(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, route)
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "N"}).body == route


def test_key_values_are_kept_by_namespace() -> None:
    """Not found is code 22, for a key and for a namespace."""
    server = NameServer()
    key: dict[str, ExtValue] = {"namespace": "n", "key": "k"}
    assert server.ask(RequestCode.GET_KV_CONFIG, key).code == 22
    assert server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}).code == 22
    server.ok(RequestCode.PUT_KV_CONFIG, {**key, "value": "v"})
    assert server.ask(RequestCode.GET_KV_CONFIG, key).ext_fields == {"value": "v"}
    table = server.ok(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert table == {"table": {"k": "v"}}
    server.ok(RequestCode.DELETE_KV_CONFIG, key)
    assert server.ask(RequestCode.GET_KV_CONFIG, key).code == 22


def test_a_version_query_tells_whether_to_register(server: NameServer) -> None:
    """The version known comes as the body; there is none for an unknown broker."""
    query = RequestCode.QUERY_DATA_VERSION
    same = server.ask(query, IDENTITY, b'{"counter":3,"timestamp":1700000000000}')
    assert same.ext_fields == {"changed": "false"}
    assert json.loads(same.body)["counter"] == 3
    other = server.ask(query, IDENTITY, b'{"counter":4,"timestamp":1700000000000}')
    assert other.ext_fields == {"changed": "true"}
    unknown = server.ask(query, SLAVE, b'{"counter":3,"timestamp":1700000000000}')
    assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, b"")


def test_a_heartbeat_is_acknowledged(server: NameServer) -> None:
    """Also that of a broker which is not registered."""
    server.ok(RequestCode.BROKER_HEARTBEAT, IDENTITY)
    server.ok(RequestCode.BROKER_HEARTBEAT, SLAVE)


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
def test_both_light_requests_show_that_a_broker_lives(server: NameServer, code: int) -> None:
    """A broker whose topics did not change skips the full registration and is kept all the same."""
    server.clock.advance(119)
    assert server.ask(code, IDENTITY, b'{"counter":3,"timestamp":1700000000000}').code == 0
    server.clock.advance(119)
    assert server.routes.drop_silent() == []
    server.clock.advance(2)
    assert server.routes.drop_silent() == [server.connection]


def test_a_broker_may_name_its_own_time() -> None:
    """heartbeatTimeoutMillis of RocketMQ 5 replaces the 120 s."""
    server = NameServer()
    server.register({**IDENTITY, "heartbeatTimeoutMillis": 10_000})
    server.clock.advance(10.5)
    assert server.routes.drop_silent() == [server.connection]


def test_the_configuration_is_shown_as_properties() -> None:
    """Keys are RocketMQ's, in standalone too."""
    answer = NameServer(listenPort="1234").ask(RequestCode.GET_NAMESRV_CONFIG)
    assert answer.code == 0
    assert "listenPort=1234" in answer.body.decode().splitlines()


@pytest.mark.parametrize("line", ["kvConfigPath=/etc/passwd", "listenPort=1", "noSuchKey=x"])
def test_the_configuration_cannot_be_changed_from_outside(line: str) -> None:
    """CVE-2023-33246's way in is closed: code 16 names the key, and nothing is changed."""
    server = NameServer()
    body = f"orderMessageEnable=false\n{line}\n".encode()
    answer = server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert answer.code == 16
    assert (answer.remark or "").startswith(f"{line.partition('=')[0]} cannot be changed")
    shown = server.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()
    assert "orderMessageEnable=true" in shown
    assert server.ask(RequestCode.UPDATE_NAMESRV_CONFIG).code == 0


def test_switches_are_changed_at_once(server: NameServer) -> None:
    """The order of a topic is no part of its route any more, and the new value is shown."""
    fields: dict[str, ExtValue] = {
        "namespace": "ORDER_TOPIC_CONFIG",
        "key": "T",
        "value": "broker-a:2",
    }
    server.ok(RequestCode.PUT_KV_CONFIG, fields)
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert server.ok(route, {"topic": "T"})["orderTopicConf"] == "broker-a:2"
    body = b"orderMessageEnable=false\nreturnOrderTopicConfigToBroker=false\n"
    server.ok(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert "orderTopicConf" not in server.ok(route, {"topic": "T"})
    assert server.register().body == b""
    shown = server.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()
    assert "orderMessageEnable=false" in shown


@pytest.mark.parametrize("field", ["clusterName", "brokerName", "brokerAddr", "haServerAddr"])
def test_names_of_brokers_are_no_longer_than_names_are(server: NameServer, field: str) -> None:
    """They are kept, and a header has room for 64 KiB."""
    fields = IDENTITY | {field: "x" * 513}
    answer = server.ask(RequestCode.REGISTER_BROKER, fields, b"")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"{field} takes 513 bytes as JSON, more than 512"


def test_topics_left_out_lose_their_routes_once_that_is_wanted(server: NameServer) -> None:
    """deleteTopicWithBrokerRegistration counts from the next registration on."""
    fewer = TopicConfigTable(DataVersion(4, 1700000000000), {"S": TopicConfig("S", 1, 1)})
    more = TopicConfigTable(
        DataVersion(5, 1700000000000), {"S": TopicConfig("S", 1, 1), "U": TopicConfig("U", 1, 1)}
    )
    server.ask(RequestCode.REGISTER_BROKER, IDENTITY, encode_register_broker(fewer))
    topics = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    assert server.ok(topics) == {"topicList": ["T", "S"]}
    server.ok(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"deleteTopicWithBrokerRegistration=true")
    server.ask(RequestCode.REGISTER_BROKER, IDENTITY, encode_register_broker(more))
    assert server.ok(topics) == {"topicList": ["S", "U"]}


def test_a_switch_takes_true_and_false_only() -> None:
    """Code 29 names key and value."""
    answer = NameServer().ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=maybe")
    assert answer.code == 29
    assert (answer.remark or "").startswith("orderMessageEnable=maybe: must be true or false")


def test_a_configuration_that_is_no_properties_text_is_refused() -> None:
    """Code 1 names the line."""
    answer = NameServer().ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"nonsense")
    assert answer.code == 1
    assert answer.remark == "configuration line 1 is not of the form key=value"


def test_who_asks_by_a_listener_is_told_its_addresses(server: NameServer) -> None:
    """And no others; who asks at the port that all have is told what it was always told."""
    before = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body
    assert server.register(OUTSIDE).code == 0
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body == before
    server.connection.listener = "outside"
    route = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    [broker] = route["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": "192.0.2.7:30920"}
    assert [queue["brokerName"] for queue in route["queueDatas"]] == ["broker-a"]
    cluster = server.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "192.0.2.7:30920"}
    assert cluster["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
    group = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    members = server.ok(RequestCode.GET_BROKER_MEMBER_GROUP, group)
    assert members["brokerMemberGroup"]["brokerAddrs"] == {"0": "192.0.2.7:30920"}
    topics = server.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert topics["brokerAddr"] == "192.0.2.7:30920"


def test_a_broker_without_an_address_at_a_listener_is_not_there(server: NameServer) -> None:
    """Neither its queues nor its name: its other address leads nowhere from there."""
    other = {**OUTSIDE, "brokerName": "broker-b", "brokerAddr": "10.0.0.9:10911"}
    assert server.register(other).code == 0
    assert server.register(SLAVE).code == 0
    server.connection.listener = "outside"
    route = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert [queue["brokerName"] for queue in route["queueDatas"]] == ["broker-b"]
    assert [broker["brokerName"] for broker in route["brokerDatas"]] == ["broker-b"]
    cluster = server.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert list(cluster["brokerAddrTable"]) == ["broker-b"]
    assert cluster["clusterAddrTable"] == {"DefaultCluster": ["broker-b"]}
    server.connection.listener = "elsewhere"
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert answer.code == 17
    assert answer.remark == (
        "No topic route info in name server for the topic: T, by listener elsewhere"
    )
    empty = server.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert empty == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert server.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)["brokerAddr"] == ""


def test_addresses_of_listeners_are_those_of_the_last_registration(server: NameServer) -> None:
    """Also where its topics are as before."""
    server.connection.listener = "outside"
    fields: dict[str, ExtValue] = {"topic": "T"}
    for address in ("192.0.2.7:30920", "192.0.2.8:30920"):
        listeners = json.dumps({"outside": address})
        assert server.register({**IDENTITY, "mailboatListeners": listeners}).code == 0
        [broker] = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)["brokerDatas"]
        assert broker["brokerAddrs"] == {"0": address}
    assert server.register(IDENTITY).code == 0
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields).code == 17


def test_an_away_broker_keeps_the_addresses_of_its_listeners(server: NameServer) -> None:
    """Clients that look while it restarts know it when it is back."""
    assert server.register({**OUTSIDE, "routeKeptMillis": 60_000}).code == 0
    server.routes.connection_closed(server.connection)
    server.connection.listener = "outside"
    route = server.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "192.0.2.7:30920"}


@pytest.mark.parametrize(
    ("listeners", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"Outside":"192.0.2.7:1"}', "cannot be read"),
        ('{"outside":7}', "cannot be read"),
        ('{"outside":"192.0.2.7"}', "the address of outside must be host:port"),
        ('{"outside":"192.0.2.7:0"}', "the address of outside must be host:port"),
        ('{"outside":"192.0.2.7:1\\n"}', "the address of outside must be host:port"),
        ('{"outside":"' + "a" * 300 + ':1"}', "the address of outside must be host:port"),
        (json.dumps({f"o{number}": "a:1" for number in range(9)}), "more than 8 listeners"),
    ],
)
def test_listeners_that_nobody_could_use_are_refused(listeners: str, words: str) -> None:
    """With one sentence, and nothing is registered."""
    server = NameServer()
    answer = server.register({**IDENTITY, "mailboatListeners": listeners})
    assert answer.code == 1
    assert words in (answer.remark or "")
    assert server.ok(RequestCode.GET_BROKER_CLUSTER_INFO)["brokerAddrTable"] == {}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (RequestCode.UNREGISTER_BROKER, "brokerName"),
        (RequestCode.UNREGISTER_BROKER, "brokerAddr"),
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, "brokerName"),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, "brokerName"),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, "topic"),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, "topic"),
    ],
)
def test_a_name_has_a_length(server: NameServer, code: int, name: str) -> None:
    """Each of these writes it to the log."""
    fields: dict[str, ExtValue] = {**IDENTITY, "topic": "T", name: "n" * 1025}
    answer = server.ask(code, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"field '{name}' has 1025 characters" in (answer.remark or "")


def test_a_short_registration_that_ends_many_routes_lets_others_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is read at once is taken over in turns; the next one of the same broker waits for it."""
    server = NameServer()
    server.routes.delete_unlisted_topics = True
    names = [f"t{number}" for number in range(5_000)]
    many = TopicConfigTable(DataVersion(3, 1), {name: TopicConfig(name) for name in names})
    server.ask(RequestCode.REGISTER_BROKER, IDENTITY, encode_register_broker(many))
    assert server.routes.topic_count() == 5_000
    clock = VirtualTime()

    def look() -> float:
        clock.advance(turns.FIRST_TURN_S / 4)
        return clock.monotonic()

    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=look))

    def register(number: int, topics: dict[str, TopicConfig]) -> bytes | None:
        body = encode_register_broker(TopicConfigTable(DataVersion(number, number), topics))
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, IDENTITY, body)
        return server._dispatcher.process(cast(Connection, server.connection), request)

    async def ask() -> None:
        assert register(4, {}) is None
        assert 2_000 < server.routes.topic_count() < 5_000
        assert register(5, {"T": TopicConfig("T")}) is None
        await server._dispatcher.drain(10)
        server.connection.written = b""

    asyncio.run(ask())
    assert server.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": ["T"]}


@pytest.mark.parametrize("name", ["clusterName", "brokerName", "brokerAddr", "haServerAddr"])
def test_names_of_brokers_count_as_they_are_written(server: NameServer, name: str) -> None:
    """A control character takes six bytes: the answer with all brokers must fit a frame."""
    for value, code in (("\x01" * 86, 1), ("\x01" * 85, 0), ("n" * 512, 0), ("\u00fc" * 257, 1)):
        answer = server.register({**IDENTITY, name: value})
        assert answer.code == code
        if code:
            assert f"{name} takes 51" in (answer.remark or "")
        server.routes.connection_closed(server.connection)
