"""The tables of what speaks as a master of RocketMQ, at a slave of ours (real: tests/interop)."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loop_lag import LoopLag
from speaking_master import SpeakingMaster, end_of, slave_of, write_log

from mailboat.broker.controller import BrokerController
from mailboat.broker.replicas.java_tables import JavaTables
from mailboat.errors import BrokerError, RemoteProtocolError
from mailboat.model.names import SYSTEM_GROUPS
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.table_entries import MAX_ENTRY_BYTES

pytestmark = pytest.mark.slow  # They wait for rounds of the tables.

TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG
GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
OFFSETS = RequestCode.GET_ALL_CONSUMER_OFFSET
DELAY = RequestCode.GET_ALL_DELAY_OFFSET


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> bytes:
    """Some messages of a topic "orders", in three queues."""
    log = write_log(tmp_path / "theirs")
    return log[: end_of(log, 40)]


def _topic(name: str, **fields: object) -> dict[str, Any]:
    return {
        "topicName": name,
        "readQueueNums": 3,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    } | fields


def _topics(*topics: dict[str, Any], counter: int = 1) -> bytes:
    table = {topic["topicName"]: topic for topic in topics}
    version = {"counter": counter, "timestamp": 1_700_000_000_000, "stateVersion": 0}
    return json.dumps({"dataVersion": version, "topicConfigTable": table}).encode()


def _groups(*names: str, **fields: object) -> bytes:
    table = {name: {"groupName": name, "retryMaxTimes": 5} | fields for name in names}
    # Java has more in it, also of other brokers' versions.
    more = {"forbiddenTable": {"G": {"orders": 3}}, "dataVersion": {"counter": 7}}
    return json.dumps({"subscriptionGroupTable": table, **more}).encode()


def _java_offsets(table: dict[str, dict[int, int]]) -> bytes:
    """Write numbers as Java does, without quotes where they are keys."""
    entries = ",".join(
        f'"{key}":{{{",".join(f"{queue}:{at}" for queue, at in queues.items())}}}'
        for key, queues in table.items()
    )
    return f'{{"dataVersion":{{"counter":2}},"offsetTable":{{{entries}}}}}'.encode()


def _tables(broker: BrokerController) -> JavaTables:
    assert broker.replicas is not None
    return broker.replicas.java_tables


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _following(root: Path, master: SpeakingMaster) -> AsyncIterator[BrokerController]:
    """Start a slave, and wait until it has the log and has asked for the tables once."""
    async with slave_of(root, master) as broker:
        await master.until_reported(min(master.end, master.sends_below))
        await _until(lambda: math.isfinite(_tables(broker).age_s))
        yield broker


async def test_topics_and_groups_become_those_of_the_master(tmp_path: Path, log: bytes) -> None:
    """All of them, what changes, and without what is gone; they are there after a restart."""
    async with SpeakingMaster(log) as master:
        master.tables[TOPICS] = _topics(_topic("orders"), _topic("%RETRY%G", readQueueNums=1))
        master.tables[GROUPS] = _groups("G", "H")
        async with _following(tmp_path / "ours", master) as broker:
            topics, groups = broker.topics, broker.groups
            config = topics.table["orders"]
            assert (config.read_queue_nums, config.perm) == (3, 6)
            assert "%RETRY%G" in topics.table
            assert groups.table["G"].retry_max_times == 5
            assert (topics.data_version.counter, groups.data_version.counter) == (1, 7)
            own = topics.system_topics
            master.tables[TOPICS] = _topics(_topic("orders", perm=4), _topic("new"), counter=2)
            master.tables[GROUPS] = _groups("H", consumeEnable=False)
            await _tables(broker).take()
        async with slave_of(tmp_path / "ours", master) as broker:
            topics, groups = broker.topics, broker.groups
            assert topics.table.keys() == {*own, "orders", "new"}
            assert topics.table["orders"].perm == 4
            assert topics.data_version.counter == 2
            assert groups.table.keys() == {*SYSTEM_GROUPS, "H"}
            assert not groups.table["H"].consume_enable


async def test_offsets_rise_and_are_set_back(tmp_path: Path, log: bytes) -> None:
    """What is committed here counts while it is further, and what the master sets back does too."""
    async with SpeakingMaster(log) as master:
        master.tables[OFFSETS] = _java_offsets({"orders@G": {0: 5, 1: 7}, "orders@H": {0: 3}})
        async with _following(tmp_path / "ours", master) as broker:
            offsets = broker.offsets
            assert offsets.queues("G", "orders") == {0: 5, 1: 7}
            # The master is away for a moment, and a client commits here.
            offsets.commit("G", "orders", 0, 9)
            master.tables[OFFSETS] = _java_offsets({"orders@G": {0: 6, 1: 8}, "orders@H": {0: 3}})
            await _tables(broker).take()
            assert offsets.queues("G", "orders") == {0: 9, 1: 8}
            # Somebody resets a group there, and deletes another one.
            master.tables[OFFSETS] = _java_offsets({"orders@G": {0: 2, 1: 8}})
            await _tables(broker).take()
            assert offsets.queues("G", "orders") == {0: 2, 1: 8}
            assert offsets.groups() == {"G"}
            # It is killed, and comes back with what it saved before.
            session = broker.replicas.java_master.session  # type: ignore[union-attr]
            master.tables[OFFSETS] = _java_offsets({"orders@G": {0: 1, 1: 4}})
            master.hang_up()
            await _until(lambda: broker.replicas.java_master.session > session)  # type: ignore[union-attr]
            await _tables(broker).take()
            assert offsets.queues("G", "orders") == {0: 2, 1: 8}
        async with slave_of(tmp_path / "ours", master) as broker:
            assert broker.offsets.queues("G", "orders") == {0: 2, 1: 8}


async def test_delayed_messages_count_once_their_copies_are_here(
    tmp_path: Path, log: bytes
) -> None:
    """Before that they would be lost with a switch: nobody would deliver them."""
    master = SpeakingMaster(log)
    master.sends_below = len(log) - 700
    async with master:
        master.tables[DELAY] = b'{"dataVersion":{"counter":4},"offsetTable":{3:17,18:2}}'
        async with slave_of(tmp_path / "ours", master) as broker:
            await master.until_reported(end_of(log, 39))
            await _until(lambda: math.isfinite(_tables(broker).age_s))
            # Behind a master that is written to, the later answer counts later.
            master.tables[DELAY] = b'{"offsetTable":{3:18}}'
            await _tables(broker).take()
            progress = broker.schedule.progress
            assert progress.data_version.counter == 0
            master.sends_below = 1 << 60
            master.grow()
            await _until(lambda: progress.data_version.counter == 4)
            await broker.schedule.persist()
        saved = json.loads((tmp_path / "ours" / "config" / "delayOffset.json").read_text())
        assert saved["offsetTable"] == {"3": 17, "18": 2}


async def test_odd_entries_are_left_out(
    tmp_path: Path, log: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Names, numbers and texts that nobody may have; the others are taken."""
    async with SpeakingMaster(log) as master:
        entries = {
            "orders": _topic("orders"),
            "wide": _topic("wide", readQueueNums=1 << 70, perm=-1),
            "../up": _topic("../up"),
            "a b": _topic("a b"),
            "": _topic(""),
            "other": _topic("another"),
            "kind": _topic("kind", topicFilterType="X"),
            "list": [],
            "text": _topic("text", readQueueNums="many"),
            "n" * 200: _topic("n" * 200),
        }
        master.tables[TOPICS] = json.dumps({"topicConfigTable": entries}).encode()
        master.tables[GROUPS] = _groups("G", "a b", "x" * 256, "y" * 250)
        master.tables[OFFSETS] = _java_offsets(
            {
                "orders@G": {0: 4},
                "orders@H": {0: -1},
                "orders@I": {0: 1 << 63},
                "orders@J": {-1: 3},
                "orders@K": {1 << 40: 3},
                "orders": {0: 1},
                "a/b@G": {0: 1},
                "@": {0: 1},
            }
        )
        async with _following(tmp_path / "ours", master) as broker:
            names = broker.topics.table.keys() - {*broker.topics.system_topics}
            assert names == {"orders", "wide"}
            wide = broker.topics.table["wide"]
            assert (wide.read_queue_nums, wide.perm) == (10_000, 0)
            assert broker.groups.table.keys() == {*SYSTEM_GROUPS, "G"}
            assert broker.offsets.shared() == ["orders@G"]
            await _tables(broker).take()
            said = [text for text in caplog.messages if "left out" in text]
            assert len(said) == 3
            assert "'../up'" in said[0]


async def test_what_has_become_odd_stays_as_it_was(tmp_path: Path, log: bytes) -> None:
    """It is there still, so nothing of that name is gone; 4.9 keeps an offset of -1."""
    async with SpeakingMaster(log) as master:
        master.tables[TOPICS] = _topics(_topic("orders"))
        master.tables[GROUPS] = _groups("G")
        master.tables[OFFSETS] = _java_offsets({"orders@G": {0: 5, 1: 6, 2: 4}, "orders@H": {0: 3}})
        async with _following(tmp_path / "ours", master) as broker:
            master.tables[TOPICS] = _topics(_topic("orders", topicFilterType="X"), counter=2)
            master.tables[GROUPS] = _groups("G", retryMaxTimes="many")
            master.tables[OFFSETS] = _java_offsets(
                {"orders@G": {0: 5, 1: 7, 2: -1}, "orders@H": {0: -1}}
            )
            await _tables(broker).take()
            assert "orders" in broker.topics.table
            assert broker.groups.table["G"].retry_max_times == 5
            assert broker.offsets.queues("G", "orders") == {0: 5, 1: 7, 2: 4}
            assert broker.offsets.queues("H", "orders") == {0: 3}
            master.tables[OFFSETS] = _java_offsets({"orders@G": {0: 5, 1: 7, 2: 1}})
            await _tables(broker).take()
            assert broker.offsets.queues("G", "orders") == {0: 5, 1: 7, 2: 1}
            assert broker.offsets.groups() == {"G"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"topicConfigTable":null}',
        b'{"topicConfigTable":{"orders":{"topicName":"orders"}',
        b'{"topicConfigTable":{"orders":' + b"[" * 1000,
        b'{"topicConfigTable":{"orders":"' + b"x" * (MAX_ENTRY_BYTES + 1) + b'"}}',
        b'{"topicConfigTable":{"\\ud800":{}}}',
    ],
)
async def test_an_answer_without_a_table_changes_nothing(
    tmp_path: Path, log: bytes, body: bytes
) -> None:
    """Least of all are topics gone; it is asked again."""
    async with SpeakingMaster(log) as master:
        master.tables[TOPICS] = _topics(_topic("orders"))
        async with _following(tmp_path / "ours", master) as broker:
            master.tables[TOPICS] = body
            with pytest.raises(RemoteProtocolError):
                await _tables(broker).take()
            assert "orders" in broker.topics.table


async def test_large_tables_hold_nobody_up(
    tmp_path: Path, log: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """No callback of the broker takes 50 ms (which the test run watches), and all is taken, also
    that all of it is gone."""
    async with SpeakingMaster(log) as master:
        names = [f"topic-{number}" for number in range(20_000)]
        master.tables[TOPICS] = _topics(*map(_topic, names))
        master.tables[GROUPS] = _groups(*(f"group-{number}" for number in range(20_000)))
        queues = dict.fromkeys(range(8), 3)
        master.tables[OFFSETS] = _java_offsets(
            {f"{name}@group-{number}": queues for number, name in enumerate(names)}
        )
        async with _following(tmp_path / "ours", master) as broker:
            assert broker.topics.table.keys() >= {*names}
            assert len(broker.groups.table) >= 20_000
            assert broker.offsets.query("group-19999", "topic-19999", 7) == 3
            master.tables[TOPICS] = _topics(counter=2)
            master.tables[GROUPS] = _groups()
            with caplog.at_level(logging.INFO):  # As a broker has it: each one is said.
                async with LoopLag() as lag:
                    await _tables(broker).take()
            assert lag.longest_s < 0.1
            assert broker.topics.table.keys() == {*broker.topics.system_topics}
            assert broker.groups.table.keys() == {*SYSTEM_GROUPS}


async def test_half_a_table_does_not_have_its_version(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import from the master's folder, once that one is gone, takes what is missing."""
    async with SpeakingMaster(log) as master:
        master.tables[TOPICS] = _topics(_topic("orders"))
        async with _following(tmp_path / "ours", master) as broker:
            some = [_topic(f"orders-{number}") for number in range(300)]
            master.tables[TOPICS] = _topics(_topic("orders"), *some, counter=2)
            monkeypatch.setattr("mailboat.broker.topics.MAX_REGISTERED_BYTES", 8000)
            with pytest.raises(BrokerError):
                await _tables(broker).take()
            assert "orders-100" in broker.topics.table
            assert "orders-299" not in broker.topics.table
            assert broker.topics.data_version.counter == 1
            monkeypatch.undo()
            await _tables(broker).take()
            assert broker.topics.data_version.counter == 2


async def test_who_begins_to_lead_takes_no_more(tmp_path: Path, log: bytes) -> None:
    """The tables are its own from then on, even if an answer is on its way."""
    async with SpeakingMaster(log) as master:
        master.tables[TOPICS] = _topics(_topic("orders"))
        async with _following(tmp_path / "ours", master) as broker:
            assert broker.replicas is not None
            broker.replicas.group.promote(accepts_loss=True)
            await _until(lambda: broker.is_leading)
            master.tables[TOPICS] = _topics(_topic("new"))
            await _tables(broker).take()
            assert "orders" in broker.topics.table
            assert "new" not in broker.topics.table
