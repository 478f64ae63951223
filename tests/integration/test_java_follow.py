"""`mailboat replica follow` and `status` below what speaks as a master of RocketMQ."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from raw_client import RawClient
from speaking_master import SpeakingMaster, end_of, node_of, write_log

from mailboat.cli import main
from mailboat.node import Node
from mailboat.protocol.codes import RequestCode, ResponseCode

Capture = pytest.CaptureFixture[bytes]
_TOPICS = {
    "topicConfigTable": {
        "orders": {
            "topicName": "orders",
            "readQueueNums": 3,
            "writeQueueNums": 3,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
    }
}


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> bytes:
    """40 messages of a topic "orders", in three queues."""
    log = write_log(tmp_path / "theirs")
    return log[: end_of(log, 40)]


@pytest.fixture(name="master")
def _master(log: bytes) -> SpeakingMaster:
    """A master that says of that log what is true of it."""
    master = SpeakingMaster(log)
    master.tables[RequestCode.GET_ALL_TOPIC_CONFIG] = json.dumps(_TOPICS).encode()
    master.ends["orders"] = {0: 14, 1: 13, 2: 13}
    master.config = {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
    return master


class _Commands:
    """Runs commands of `mailboat replica` beside the loop that serves the broker."""

    def __init__(self, node: Node, capture: Capture) -> None:
        self._http = node.addresses()["http"]
        self._capture = capture

    async def run(self, *words: str, code: int = 0) -> str:
        found = await asyncio.to_thread(main, ["replica", *words, "--http", self._http])
        captured = self._capture.readouterr()
        assert found == code, captured.err.decode() + captured.out.decode()
        return (captured.err if code else captured.out).decode().strip()


@asynccontextmanager
async def _slave(
    root: Path, master: SpeakingMaster, capture: Capture, **config: str
) -> AsyncIterator[tuple[Node, _Commands]]:
    options = {"httpPort": "0", "slaveReadEnable": "true", **config}
    async with node_of(root, master, **options) as node:
        async with asyncio.timeout(20):
            while "http" not in node.addresses():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield node, _Commands(node, capture)


async def test_a_level_replica(
    tmp_path: Path, master: SpeakingMaster, capsysbinary: Capture
) -> None:
    """The log comes, its end is shown, and all queues are equal in the end."""
    master.sends_below = 20_000
    async with master, _slave(tmp_path / "ours", master, capsysbinary) as (node, commands):
        await master.until_reported(19_000)
        following = asyncio.create_task(commands.run("follow"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.shield(following)
        master.sends_below = 1 << 60
        master.grow()
        shown = (await following).splitlines()
        assert shown[0].startswith("replica 1 of group broker-a follows the master of RocketMQ at ")
        assert shown[1].startswith("lacks ")
        assert shown[-3:] == [
            f"level: both logs end at {master.end}",
            "equal: 1 topics, 3 queues",
            "equal: offsets of consumers, delivered delayed messages",
        ]
        master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = (
            b'{"offsetTable":{"orders@G":{0:3},"orders@H":{2:1}}}'
        )
        master.tables[RequestCode.GET_ALL_DELAY_OFFSET] = b'{"offsetTable":{2:5,3:0}}'
        assert (await commands.run("follow")).splitlines()[-1] == (
            "2 of 2 groups in topics have read further there; "
            "more delayed messages are delivered there, of the levels 2"
        )
        assert node.broker is not None
        assert node.broker.replicas is not None
        await node.broker.replicas.java_tables.take()
        assert (await commands.run("follow")).splitlines()[-1] == shown[-1]


async def test_what_is_not_equal_is_said(
    tmp_path: Path, master: SpeakingMaster, capsysbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings, messages for the timer wheel, queues that end elsewhere, a topic that is away."""
    monkeypatch.setattr("mailboat.cli.replica.comparison._LOOK_AGAIN_S", (0.0, 0.05))
    async with master, _slave(tmp_path / "ours", master, capsysbinary) as (_, commands):
        await master.until_reported(master.end)
        master.config |= {"brokerName": "broker-b", "fileReservedTime": "168"}
        master.config["maxMessageSize"] = "1000"
        master.info["timerCongestNum"] = "3"
        said = await commands.run("follow", code=1)
        assert "brokerName is broker-b at the master, and broker-a here" in said
        assert "3 messages wait in the master's timer wheel" in said
        # Else it would delete what the master still has.
        assert "fileReservedTime is 168 at the master, and only 72 here" in said
        assert "maxMessageSize" not in said
        master.config |= {"brokerName": "broker-a", "fileReservedTime": "9" * 5000}
        master.info.clear()
        master.ends["orders"] = {0: 15, 1: 13, 2: 12}
        said = await commands.run("follow", code=1)
        assert "orders queue 0 ends at 14, at the master at 15" in said
        assert "orders queue 1" not in said
        assert "orders queue 2 ends at 13, at the master at 12" in said
        table = dict(_TOPICS["topicConfigTable"], new=_TOPICS["topicConfigTable"]["orders"])
        body = json.dumps({"topicConfigTable": table}).encode()
        master.tables[RequestCode.GET_ALL_TOPIC_CONFIG] = body
        master.ends |= {"orders": {0: 14, 1: 13, 2: 13}, "new": {0: 0}}
        assert "topic new is not here" in await commands.run("follow", code=1)


async def test_who_does_not_follow_is_told_why(
    tmp_path: Path,
    master: SpeakingMaster,
    capsysbinary: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delay levels that are not those of the master are a reason: the log does not have times."""
    monkeypatch.setattr("mailboat.cli.replica.following._PATIENCE_S", 3.0)
    master.config["messageDelayLevel"] = "1s 2s"
    async with master, _slave(tmp_path / "ours", master, capsysbinary) as (node, commands):
        said = await commands.run("follow", code=1)
        assert "its messageDelayLevel is 1s 2s, here it is 1s 5s 10s" in said
        assert node.broker is not None
        assert node.broker.store.commit_log.end == 0


async def test_status_readiness_and_ha_status(
    tmp_path: Path, master: SpeakingMaster, capsysbinary: Capture
) -> None:
    """It is a slave that is ready; mqadmin's haStatus has the master, and readers go back to it."""
    async with master, _slave(tmp_path / "ours", master, capsysbinary) as (node, commands):
        await master.until_reported(master.end)
        assert "level: " in await commands.run("follow")
        status = json.loads(await commands.run("status", "--json"))
        assert status["role"] == "slave"
        java = status["java_master"]
        assert java["is_followed"]
        assert (java["start"], java["end"], java["lag_bytes"]) == (0, master.end, 0)
        assert java["client_address"] == f"127.0.0.1:{master.port - 1}"
        assert java["silent_seconds"] < 20
        shown = await commands.run("status")
        assert "log             followed" in shown
        url = f"http://{node.addresses()['http']}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
        client = RawClient(node.addresses()["broker"])
        body = (await client.ok(RequestCode.GET_BROKER_HA_STATUS)).body
        own = json.loads(body)["haClientRuntimeInfo"]
        assert own["activated"]
        assert own["masterAddr"] == f"127.0.0.1:{master.port}"
        assert own["maxOffset"] == master.end
        assert own["lastReadTimestamp"] > 1_700_000_000_000
        answer = await client.pull("TOOLS_CONSUMER", "orders", 14, suspend_ms=15_000)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        await client.close()
