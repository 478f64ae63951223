"""`mailboat replica`, and what it asks over HTTP, on groups of real brokers."""

import asyncio
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from full_volume import full
from prometheus_client.parser import text_string_to_metric_families
from replica_nodes import ReplicaNodes, same_log

from mailboat.cli import main
from mailboat.client import Message, Producer
from mailboat.testing.cluster import Cluster

Capture = pytest.CaptureFixture[bytes]
_HTTP = {"httpPort": "0"}


class Commands:
    """Runs commands of `mailboat replica` beside the loop that serves the group."""

    def __init__(self, nodes: ReplicaNodes, capture: Capture) -> None:
        """Ask the brokers of `nodes`."""
        self._nodes = nodes
        self._capture = capture

    async def run(self, ordinal: int, *words: str, code: int = 0) -> str:
        """Run a command about a replica, which must end with `code`; return what it printed."""
        http = self._nodes.addresses(ordinal)["http"]
        found = await asyncio.to_thread(main, ["replica", *words, "--http", http])
        captured = self._capture.readouterr()
        assert found == code, captured.err.decode() + captured.out.decode()
        return (captured.err if code else captured.out).decode().strip()

    async def status(self, ordinal: int) -> Any:
        """Return what a replica says of itself."""
        return json.loads(await self.run(ordinal, "status", "--json"))


async def _send(nodes: ReplicaNodes, count: int) -> None:
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", b"%d" % number))


async def test_status_of_master_and_slave(tmp_path: Path, capsysbinary: Capture) -> None:
    """Both say who leads, which epoch it is, how far the log is confirmed, and who is behind."""
    async with ReplicaNodes(tmp_path, 3, _HTTP) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        await _send(nodes, 10)
        end = nodes.broker(0).store.commit_log.end
        await nodes.until(
            lambda: nodes.group(1).replica.confirmed == end == nodes.group(2).replica.confirmed
        )
        leading = nodes.group(0).replica.leading
        assert leading is not None
        master, slave = await commands.status(0), await commands.status(1)
        assert (master["role"], master["in_sync"]) == ("master", [0, 1, 2])
        assert (slave["role"], slave["in_sync"]) == ("slave", None)
        for found in (master, slave):
            assert (found["leader"], found["epoch"]) == (0, leading.epoch)
            assert (found["end"], found["confirmed_offset"]) == (end, end)
            assert (found["group"], found["replicas"]) == ("broker-a", 3)
            assert (found["alarm"], found["promotion_refusal"]) == ("", "")
        assert master["refusal"] == ""
        assert slave["refusal"] == "this replica does not lead"
        assert [peer["ordinal"] for peer in master["peers"]] == [1, 2]
        for peer in master["peers"]:
            assert (peer["acked_end"], peer["lag_bytes"], peer["is_in_sync"]) == (end, 0, True)
            assert peer["client_address"] == nodes.addresses(peer["ordinal"])["broker"]
            assert peer["silent_seconds"] < 5
        to_master = slave["peers"][0]
        assert (to_master["leads"], to_master["lag_bytes"]) == (True, 0)
        assert to_master["is_in_sync"] is None
        shown = await commands.run(0, "status")
        assert "in sync set       0, 1, 2" in shown
        assert shown.count(" slave ") == 2


async def test_metrics_and_readiness(tmp_path: Path) -> None:
    """Master and slave are ready and show who has what; who has no master is not ready."""
    async with ReplicaNodes(tmp_path, 2, _HTTP) as nodes:
        await nodes.wait_http()
        await nodes.in_sync()
        await _send(nodes, 5)
        end = nodes.broker(0).store.commit_log.end
        await nodes.until(lambda: nodes.group(1).replica.confirmed == end)
        master, slave = await _samples(nodes, 0), await _samples(nodes, 1)
        assert (master["role,master"], master["role,slave"]) == (1, 0)
        assert (slave["role,master"], slave["role,slave"]) == (0, 1)
        assert (master["in_sync"], master["min_in_sync"], "in_sync" in slave) == (2, 2, False)
        assert master["confirmed_offset"] == slave["confirmed_offset"] == end
        assert master["epoch"] == slave["epoch"] == nodes.group(0).replica.last_epoch
        assert (master["peer_lag_bytes,1"], master["peer_in_sync,1"]) == (0, 1)
        assert (slave["peer_lag_bytes,0"], slave["peer_linked,0"]) == (0, 1)
        assert 0 <= slave["peer_silent_seconds,0"] < 5
        assert [(await _ready(nodes, ordinal))[0] for ordinal in (0, 1)] == [200, 200]
        await nodes.stop(0)
        await nodes.until(lambda: not nodes.group(1).is_following)
        assert await _ready(nodes, 1) == (503, "this replica neither leads nor follows a master")


async def test_a_slave_without_room_says_so_and_goes_on(
    tmp_path: Path, volume: Callable[[int], Path], capsysbinary: Capture
) -> None:
    """A full volume is in its status, in /metrics and in /readyz for as long as it is full."""
    folder = tmp_path / "replica-1"
    folder.symlink_to(volume(40 << 20))
    options = {**_HTTP, "inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        await _send(nodes, 5)
        with full(folder):
            async with Producer("group", namesrv=nodes.namesrv) as producer:
                for _ in range(100):
                    await producer.send(Message("topic", random.randbytes(100_000)))
            await nodes.until(lambda: bool(nodes.group(1).write_trouble))
            trouble = (await commands.status(1))["write_trouble"]
            assert "No space left on device" in trouble
            assert f"make room on the volume of {folder}" in trouble
            assert trouble in " ".join((await commands.run(1, "status")).split())
            assert (await _samples(nodes, 1))["cannot_write"] == 1
            assert (await _samples(nodes, 0))["cannot_write"] == 0
            # It says so as long as it lasts, whatever it tries meanwhile.
            assert nodes.log_bytes(1) != nodes.log_bytes(0)
            tries = set()

            def has_tried() -> bool:
                assert nodes.group(1).write_trouble
                tries.add(nodes.group(1).replica)
                return len(tries) > 3

            await nodes.until(has_tried)
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        await nodes.until(lambda: not nodes.group(1).write_trouble)
        assert (await _samples(nodes, 1))["cannot_write"] == 0
        assert (await _ready(nodes, 1))[0] == 200


async def _samples(nodes: ReplicaNodes, ordinal: int) -> dict[str, float]:
    url = f"http://{nodes.addresses(ordinal)['http']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        page = await answer.text()
    return {
        ",".join([sample.name.removeprefix("mailboat_replica_"), *sample.labels.values()]): (
            sample.value
        )
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("mailboat_replica_")
    }


async def _ready(nodes: ReplicaNodes, ordinal: int) -> tuple[int, str | None]:
    url = f"http://{nodes.addresses(ordinal)['http']}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, (await answer.json()).get("reason")


async def test_status_says_why_there_is_no_link(tmp_path: Path, capsysbinary: Capture) -> None:
    """A replica that is gone is named with the reason, and with how long it has been silent."""
    async with ReplicaNodes(tmp_path, 3, _HTTP) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        await nodes.stop(0)
        replicas = nodes.broker(1).replicas
        assert replicas is not None
        await nodes.until(lambda: bool(replicas.peers.troubles))
        peer = (await commands.status(1))["peers"][0]
        assert not peer["is_linked"]
        assert peer["trouble"] == "connection refused"
        assert peer["silent_seconds"] > 0
        assert "not linked" in await commands.run(1, "status")


async def test_follow_is_for_a_master_of_rocketmq(
    tmp_path: Path, capsysbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a master of ours, or beside another group, it says so, and what to ask instead."""
    monkeypatch.setattr("mailboat.cli.replica.following._PATIENCE_S", 3.0)
    async with ReplicaNodes(tmp_path, 2, _HTTP) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        for ordinal in (0, 1):
            assert await commands.run(ordinal, "follow", code=1) == (
                "mailboat: the replica follows no master of RocketMQ: in its group of mailboat "
                "replica 0 leads; `mailboat replica status` shows how far each replica follows "
                "that one"
            )
        own = {
            "brokerName": "broker-b",
            "brokerId": "1",
            "totalReplicas": "2",
            "haMasterAddress": nodes.addresses(0)["replicas"],
        }
        options = {**_HTTP, **own, "namesrvAddr": nodes.namesrv, "brokerRole": "SLAVE"}
        async with ReplicaNodes(tmp_path / "b", 1, options) as others:
            await others.wait_http()
            said = await Commands(others, capsysbinary).run(0, "follow", code=1)
            assert said.startswith("mailboat: the replica follows no master of RocketMQ: ")
            assert "broker-a" in said


async def test_promotion_tells_its_outcome(tmp_path: Path, capsysbinary: Capture) -> None:
    """It says why it is refused, and once the master is gone that the slave leads."""
    async with ReplicaNodes(tmp_path, 2, _HTTP) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        await _send(nodes, 5)
        sentence = await commands.run(1, "promote", code=1)
        assert "replica 1 does not lead: replica 0 leads, or hears from who does" in sentence
        assert sentence.count("\n") == 0
        assert "replica 0 leads" in (await commands.status(1))["promotion_refusal"]
        assert 0 <= (await commands.status(1))["promotion_refused_seconds_ago"] < 10
        shown = " ".join((await commands.run(1, "status")).split())
        assert re.search(r"last promotion refused \d s ago: replica 0 leads", shown)
        assert await commands.run(0, "promote") == "replica 0 leads now"
        await nodes.stop(0)
        assert await commands.run(1, "promote") == "replica 1 leads now"
        assert nodes.leader() == 1
        assert (await commands.status(1))["promotion_refused_seconds_ago"] is None
        assert "s ago: " not in await commands.run(1, "status")
        assert (await commands.status(1))["refusal"] == "not enough replicas are in sync"


async def test_promotion_wants_enough_others(tmp_path: Path, capsysbinary: Capture) -> None:
    """Of three replicas with two in sync, one alone leads only at the risk of losing messages."""
    async with ReplicaNodes(tmp_path, 3, _HTTP) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        await nodes.stop(0)
        await nodes.stop(2)
        sentence = await commands.run(1, "promote", code=1)
        assert "1 more replica must answer" in sentence
        assert await commands.run(1, "promote", "--accept-loss") == "replica 1 leads now"


async def test_who_waits_for_a_person_says_what_to_do(
    tmp_path: Path, capsysbinary: Capture
) -> None:
    """A slave that knows of more that was confirmed than its leader has keeps it or gives it up."""
    async with ReplicaNodes(tmp_path, 2, _HTTP) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.in_sync()
        await _send(nodes, 3)
        for ordinal in (1, 0):
            await nodes.stop(ordinal)
        volume = tmp_path / "replica-0"
        shutil.copytree(volume, tmp_path / "older")
        for ordinal in (0, 1):
            await nodes.start(ordinal)
        await nodes.in_sync()
        await _send(nodes, 5)
        end = nodes.group(0).replica.end
        await nodes.until(lambda: nodes.group(1).replica.confirmed == end)
        for ordinal in (1, 0):
            await nodes.stop(ordinal)
        shutil.rmtree(volume)
        shutil.copytree(tmp_path / "older", volume)
        await nodes.start(0)
        nodes.group(0).promote(accepts_loss=True)
        await nodes.until(lambda: nodes.leader() == 0)
        await nodes.start(1)
        await nodes.wait_http()
        await nodes.until(lambda: nodes.group(1).is_halted)
        alarm = (await commands.status(1))["alarm"]
        assert f"below {end} it was confirmed" in alarm
        assert "stop the leader and `mailboat replica promote --accept-loss` here" in alarm
        assert "`mailboat replica copy --accept-loss` here" in alarm
        before = nodes.broker(1)
        await commands.run(1, "copy", "--accept-loss")
        await nodes.until(lambda: nodes.has_begun_anew(1, before))
        await nodes.in_sync()
        assert same_log(nodes.log_bytes(0), nodes.log_bytes(1))
        assert list((tmp_path / "replica-1" / "mailboat" / "diverged").iterdir())


async def test_handover_and_demotion(tmp_path: Path, capsysbinary: Capture) -> None:
    """The named replica leads, or the one that has most; the former master follows by itself."""
    async with ReplicaNodes(tmp_path, 3, _HTTP) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        await _send(nodes, 5)
        assert await commands.run(0, "handover", "2") == "replica 2 leads now"
        await nodes.until(lambda: nodes.leader() == 2)
        await nodes.in_sync()
        await _send(nodes, 5)
        assert await commands.run(2, "demote") in ("replica 0 leads now", "replica 1 leads now")
        await nodes.until(lambda: nodes.leader() in (0, 1))
        await nodes.in_sync()
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2] != b""


async def test_handover_that_cannot_be(tmp_path: Path, capsysbinary: Capture) -> None:
    """Each refusal is one sentence that names the replicas, and nothing is changed."""
    async with ReplicaNodes(tmp_path, 2, {**_HTTP, "inSyncReplicas": "1"}) as nodes:
        commands = Commands(nodes, capsysbinary)
        await nodes.wait_http()
        await nodes.in_sync()
        assert "it does not lead: replica 0 does" in await commands.run(1, "handover", "1", code=1)
        assert "it leads already" in await commands.run(0, "handover", "0", code=1)
        assert "replica 5 is not in the in-sync set (0, 1)" in await commands.run(
            0, "handover", "5", code=1
        )
        await nodes.stop(1)
        leading = nodes.group(0).replica.leading
        assert leading is not None
        await nodes.until(lambda: len(leading.recorded) == 1)
        assert "no other replica is in the in-sync set" in await commands.run(0, "demote", code=1)
        assert nodes.leader() == 0


async def test_bad_input_is_one_sentence(tmp_path: Path, capsysbinary: Capture) -> None:
    """Addresses that are none, nobody there, a broker without replicas, and a body of nonsense."""

    async def fails(*words: str, code: int = 1) -> str:
        assert await asyncio.to_thread(main, ["replica", *words]) == code
        error = capsysbinary.readouterr().err.decode().strip()
        assert error.count("\n") == 0
        return error

    assert "'nowhere' is not host:port" in await fails("status", "--http", "nowhere", code=2)
    assert "no answer from 127.0.0.1:1:" in await fails("status", "--http", "127.0.0.1:1")
    assert "'x' is not a valid integer" in await fails("handover", "x", code=2)
    async with Cluster(tmp_path, options={"httpPort": "0"}) as cluster:
        http = await cluster.http_address()
        assert "has no replicas" in await fails("promote", "--http", http)
    async with ReplicaNodes(tmp_path / "group", 2, _HTTP) as nodes:
        await nodes.wait_http()
        await nodes.in_sync()
        url = f"http://{nodes.addresses(0)['http']}/api/v1/replica/handover"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=b'{"to": "a"}') as bad,
        ):
            assert bad.status == 400
            assert "Expected `int | null`" in (await bad.json())["error"]


async def test_a_replica_takes_its_own_address_for_what_it_is(tmp_path: Path) -> None:
    """A name of its own address among haMasterAddress is tried once, and no trouble."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        replicas = nodes.broker(1).replicas
        assert replicas is not None
        peers = replicas.peers
        peers.add_address(f"localhost:{peers.port}")
        other = nodes.broker(0).replicas
        assert other is not None
        peers.add_address(f"localhost:{other.peers.port}")
        await nodes.in_sync()
        # Everybody tries once a second.
        await asyncio.sleep(2.5)
        link = peers.link_to(0)
        await asyncio.sleep(2.5)
        assert peers.link_to(0) is link is not None
        assert not peers.troubles
