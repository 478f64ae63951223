"""Topics and groups pass one door before they are stored, whichever way they come in."""

import asyncio
import copy
import dataclasses
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mailboat.broker.controller import BrokerController
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.topics import TopicConfigManager
from mailboat.config import BrokerConfig
from mailboat.disk.json_file import JsonFile
from mailboat.errors import IllegalMessageError
from mailboat.model.data_version import DataVersion
from mailboat.model.stored_configs import check_group_config, check_topic_config
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.group_table import SubscriptionGroupTable, encode_group_table
from mailboat.protocol.register_broker import decode_register_broker, encode_register_broker
from mailboat.protocol.topic_table import TopicConfigTable, encode_topic_table
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.testing.cluster import Cluster
from mailboat.testing.simulated_disk import SimulatedDisk

CONFIG = "/store/config"

# What a header, JSON and the way back can carry: no comma or sign, which 17 gives a meaning.
TEXTS = st.sampled_from(
    ["", "x", "SINGLE_TAG", "MULTI_TAG", "NORMAL", "FIFO", "DELETE", "a b", "é", "y" * 5_000,
     "z" * 66_000]
)  # fmt: skip
ATTRIBUTES = st.sampled_from(["message.type", "cleanup.policy", "queue.type", "other", "n" * 300])
NUMBERS = st.sampled_from([0, 1, 4, 6, 7, 8, 10_000, 10_001, -1, (1 << 31) - 1, -(1 << 31)])
NAMES = st.sampled_from(
    ["ok", "%RETRY%ok", "TBW102", "rmq_sys_x", "a b", "a/b", "..", "ü", "n" * 127, "n" * 128,
     "n" * 248, "n" * 249, "n" * 256]
)  # fmt: skip


def _odd(field: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={field: values})


@st.composite
def changes(draw: st.DrawFn, numbers: tuple[str, ...]) -> dict[str, Any]:
    """Return a name and a few other fields, one of them odd as a rule."""
    found: dict[str, Any] = {"name": draw(st.just("ok") | NAMES)}
    for field in draw(st.lists(st.sampled_from(numbers), max_size=2)):
        found[field] = draw(NUMBERS)
    return found


@st.composite
def topics(draw: st.DrawFn, number: int) -> TopicConfig:
    """Return a topic; a legal name has a number, so that each is a new one."""
    fields = draw(changes(("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag")))
    fields |= draw(_odd("topic_filter_type", TEXTS))
    fields |= draw(_odd("attributes", st.dictionaries(ATTRIBUTES, TEXTS, max_size=2)))
    name = fields.pop("name")
    return TopicConfig(f"{name}{number}" if name == "ok" else name, **fields)


@st.composite
def groups(draw: st.DrawFn, number: int) -> SubscriptionGroupConfig:
    """Return a consumer group."""
    fields = draw(
        changes(
            (
                "retry_queue_nums",
                "retry_max_times",
                "broker_id",
                "which_broker_when_consume_slowly",
                "group_sys_flag",
                "consume_timeout_minute",
            )
        )
    )
    fields |= draw(_odd("attributes", st.dictionaries(ATTRIBUTES, TEXTS, max_size=1)))
    name = fields.pop("name")
    return SubscriptionGroupConfig(f"{name}{number}" if name == "ok" else name, **fields)


def _camel(config: object) -> dict[str, Any]:
    """Return RocketMQ's JSON of a configuration."""
    found = {}
    for field, value in dataclasses.asdict(config).items():  # type: ignore[call-overload]
        first, *others = field.split("_")
        found[first + "".join(map(str.title, others))] = value
    return found


class Ways:
    """Every way of asking one broker for a topic or a group; each tells whether it was taken."""

    def __init__(self, cluster: Cluster, http: aiohttp.ClientSession) -> None:
        """Ask the first broker."""
        self.broker = cluster.broker()
        self._http = http
        self.remoting = RemotingClient(Dispatcher())

    async def _ask(self, code: int, fields: dict[str, ExtValue], body: Any = None) -> bool:
        content = b"" if body is None else json.dumps(body).encode()
        command = RemotingCommand.request(code, fields, content)
        answer = await self.remoting.request(self.broker.address, command, 30.0)
        assert "internal error" not in (answer.remark or ""), answer.remark
        return answer.code == ResponseCode.SUCCESS

    async def _post(self, body: Any) -> bool:
        async with self._http.post("/api/v1/declarations", json=body) as answer:
            assert answer.status in (200, 400), (answer.status, await answer.text())
            if answer.status != 200:
                return False
            # What is there already, such as TBW102, stays as it is.
            return sum((await answer.json()).values()) == 1

    async def topic_by_17(self, config: TopicConfig) -> bool:
        """Ask as `mqadmin updateTopic` does."""
        fields = _camel(config)
        attributes = fields.pop("attributes")
        if len(str(fields) + str(attributes)) > 60_000:
            return False  # No header has room for it.
        changes = ",".join(f"+{name}={value}" for name, value in attributes.items())
        fields["topic"] = fields.pop("topicName")
        return await self._ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {**fields, "defaultTopic": "TBW102", "attributes": changes},
        )

    async def topic_by_18(self, config: TopicConfig) -> bool:
        """Ask as `mqadmin updateTopicList` does."""
        fields = _camel(config)
        signed = {f"+{name}": value for name, value in fields["attributes"].items()}
        body = {"topicConfigList": [{**fields, "attributes": signed}]}
        return await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)

    async def topic_declared(self, config: TopicConfig) -> bool:
        """Ask as the operator does."""
        return await self._post({"topics": [dataclasses.asdict(config)]})

    async def group_by_200(self, config: SubscriptionGroupConfig) -> bool:
        """Ask as `mqadmin updateSubGroup` does."""
        return await self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, _camel(config))

    async def group_by_225(self, config: SubscriptionGroupConfig) -> bool:
        """Ask as `mqadmin updateSubGroupList` does."""
        body = {"groupConfigList": [_camel(config)]}
        return await self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)

    async def group_declared(self, config: SubscriptionGroupConfig) -> bool:
        """Ask as the operator does."""
        return await self._post({"groups": [dataclasses.asdict(config)]})


async def _compare(
    broker: BrokerController, ways: list[Callable[[Any], Awaitable[bool]]], config: Any
) -> bool:
    """Ask in every way, each time for what is not there; all have to say the same."""
    name = getattr(config, "topic_name", None) or getattr(config, "group_name", "")
    taken = {}
    for way in ways:
        taken[way.__name__] = await way(copy.deepcopy(config))
        if taken[way.__name__]:
            broker.topics.delete(name) if isinstance(config, TopicConfig) else (
                broker.groups.delete(name)
            )
    assert len(set(taken.values())) == 1, (config, taken)
    return all(taken.values())


async def _ask_all(
    root: Path, some_topics: list[TopicConfig], some_groups: list[SubscriptionGroupConfig]
) -> None:
    async with Cluster(root, options={"httpPort": "0"}) as cluster:
        address = await cluster.http_address()
        async with aiohttp.ClientSession(f"http://{address}") as http:
            ways = Ways(cluster, http)
            broker = ways.broker
            topic_ways = [ways.topic_by_17, ways.topic_by_18, ways.topic_declared]
            for topic in some_topics:
                taken = await _compare(broker, topic_ways, topic)
                assert taken == _is_legal(broker.topics, topic)
            for group in some_groups:
                group_ways = [ways.group_by_200, ways.group_by_225, ways.group_declared]
                taken = await _compare(broker, group_ways, group)
                try:
                    check_group_config(group)
                except IllegalMessageError:
                    assert not taken
                else:
                    assert taken
            await ways.remoting.close()
            assert await broker.registration.register_now(30.0)
            async with http.get("/readyz") as answer:
                assert answer.status == 200


def _is_legal(manager: TopicConfigManager, config: TopicConfig) -> bool:
    try:
        check_topic_config(config, None)
    except IllegalMessageError:
        return False
    return not manager.is_system(config.topic_name)


# To make a failing example small would take minutes: each one is the life of a cluster.
@settings(max_examples=4, phases=[Phase.generate])
@given(st.data())
def test_every_way_of_asking_refuses_the_same(data: st.DataObject) -> None:
    """Lists and single ones by remoting, declarations by HTTP; the broker stays registered."""
    some_topics = [data.draw(topics(number)) for number in range(30)]
    some_groups = [data.draw(groups(number)) for number in range(15)]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(_ask_all(Path(folder), some_topics, some_groups), 60))


def _taken_over(
    table: dict[str, TopicConfig], other: dict[str, SubscriptionGroupConfig]
) -> list[TopicConfigManager]:
    """Return the topics of a broker that reads tables in files, and of one that is told them."""
    disk = SimulatedDisk()
    topics_file = encode_topic_table(TopicConfigTable(DataVersion(), table))
    JsonFile(disk, f"{CONFIG}/topics.json").save(topics_file)
    groups_file = encode_group_table(SubscriptionGroupTable(DataVersion(), other))
    JsonFile(disk, f"{CONFIG}/subscriptionGroup.json").save(groups_file)
    loaded = TopicConfigManager(BrokerConfig(), disk, CONFIG)
    loaded.load()
    loaded_groups = SubscriptionGroupManager(disk, CONFIG, auto_create=True)
    loaded_groups.load()
    told = TopicConfigManager(BrokerConfig(), SimulatedDisk(), CONFIG)
    told.follow(copy.deepcopy(table), DataVersion())
    told_groups = SubscriptionGroupManager(SimulatedDisk(), CONFIG, auto_create=True)
    told_groups.follow(copy.deepcopy(other), DataVersion())
    assert loaded_groups.table == told_groups.table
    return [loaded, told]


@settings(max_examples=100)
@given(st.data())
def test_what_files_and_replicas_bring_fits_a_registration(data: st.DataObject) -> None:
    """A file and another replica leave the same; a name server reads all but names with a space."""
    some_topics = [data.draw(topics(number)) for number in range(8)]
    some_groups = [data.draw(groups(number)) for number in range(4)]
    # A table may have an entry under another name than its own.
    keys = st.sampled_from([topic.topic_name for topic in some_topics]) | NAMES
    table = {data.draw(keys): topic for topic in some_topics}
    table.pop("TBW102", None)
    managers = _taken_over(table, {group.group_name: group for group in some_groups})
    assert managers[0].table == managers[1].table
    for manager in managers:
        assert all(name == topic.topic_name for name, topic in manager.table.items())
        expected = {name for name in manager.table if " " not in name}
        registered = {topic.topic_name: topic for topic in manager.registered()}
        assert manager.unregistered == len(manager.table) - len(expected)
        for compressed in (False, True):
            body = encode_register_broker(
                TopicConfigTable(DataVersion(), registered), compressed=compressed
            )
            read = decode_register_broker(body, compressed=compressed).topic_config_table
            assert set(read) == expected
