"""The client commands of the command line against a real name server and a real broker."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from mailboat.cli import main
from mailboat.client import Admin, Message, Producer
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.testing.cluster import Cluster


class Shell:
    """Runs commands against a cluster, beside the event loop that serves it."""

    def __init__(self, cluster: Cluster, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
        """Use the name server of `cluster`."""
        self._namesrv = cluster.namesrv_addresses
        self._capture = capsysbinary
        self.error = ""

    async def run(self, *words: str, code: int = 0) -> str:
        """Run one command, which must end with `code`, and return its output."""
        found = await asyncio.to_thread(main, [*words, "-n", self._namesrv])
        captured = self._capture.readouterr()
        self.error = captured.err.decode()
        assert found == code, self.error
        return captured.out.decode()

    async def json(self, *words: str):
        """Run one command with --json and return what it printed."""
        return json.loads(await self.run(*words, "--json"))


async def test_lines_go_through(tmp_path: Path, capsysbinary):
    """Every line that is produced is consumed, once, and the next consumer gets nothing."""
    path = tmp_path / "lines"
    lines = [b"line %d" % number for number in range(5000)]
    await asyncio.to_thread(path.write_bytes, b"\n\n" + b"\n".join(lines))
    async with Cluster(tmp_path / "cluster") as cluster:
        shell = Shell(cluster, capsysbinary)
        assert await shell.run("produce", "T", "-f", str(path)) == ""
        assert shell.error.startswith("sent 5000 messages")
        assert "(2 empty lines skipped)" in shell.error
        out = await shell.run("consume", "T", "--group", "C", "--count", "5000", "--timeout", "9")
        assert sorted(out.encode().splitlines()) == sorted(lines)
        assert shell.error.startswith("consumed 5000 messages")
        assert await shell.run("consume", "T", "--group", "C", "--timeout", "0.3") == ""
        lag = await shell.json("group", "lag", "C")
        assert (lag["lag"], sum(row["consumer_offset"] for row in lag["queues"])) == (0, 5000)


async def test_count_leaves_the_rest(tmp_path: Path, capsysbinary):
    """A consumer that stops at a count commits exactly what it printed."""
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            await producer.send_batch([Message("T", b"%d" % number) for number in range(100)])
        shell = Shell(cluster, capsysbinary)
        first = await shell.run("consume", "T", "--count", "30", "--timeout", "9")
        second = await shell.run("consume", "T", "--timeout", "0.5")
        assert first.split() == [str(number) for number in range(30)]
        assert second.split() == [str(number) for number in range(30, 100)]


async def test_json_lines_keep_everything(tmp_path: Path, capsysbinary):
    """What one consumer prints as JSON can be produced again, with key, tags and properties."""
    path = tmp_path / "lines"
    line = {"body": "x", "key": "k1", "tags": "a", "properties": {"p": "v"}}
    await asyncio.to_thread(path.write_text, json.dumps(line))
    async with Cluster(tmp_path / "cluster") as cluster:
        shell = Shell(cluster, capsysbinary)
        await shell.run("produce", "T", "--json", "-f", str(path))
        out = await shell.run("consume", "T", "--json", "--count", "1", "--timeout", "9")
        found = json.loads(out)
        assert {name: found[name] for name in line} == line
        await asyncio.to_thread(path.write_text, out)
        await shell.run("produce", "U", "--json", "-f", str(path))
        out = await shell.run("consume", "U", "--json", "--count", "1", "--timeout", "9")
        assert {name: json.loads(out)[name] for name in line} == line


async def test_pipes(tmp_path: Path):
    """As processes: standard input is produced, and `head` may close the consumer's output."""
    async with Cluster(tmp_path) as cluster:
        env = {**os.environ, "MAILBOAT_NAMESRV": cluster.namesrv_addresses}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))

        async def mailboat(words: str, data: bytes | None = None) -> tuple[bytes, bytes]:
            process = await asyncio.create_subprocess_shell(
                words.replace("mailboat", f"{sys.executable} -m mailboat.cli"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=env,
            )
            out, err = await asyncio.wait_for(process.communicate(data), 60)
            assert process.returncode == 0, err
            return out, err

        data = b"".join(b"%d\n" % number for number in range(20_000))
        await mailboat("mailboat produce T", data)
        out, err = await mailboat("mailboat consume T --group head --timeout 9 | head -3")
        assert len(out.splitlines()) == 3
        assert b"Traceback" not in err
        out, _ = await mailboat("mailboat consume T --group all --count 20000 --timeout 9")
        assert sorted(map(int, out.split())) == list(range(20_000))


async def test_topics(tmp_path: Path, capsysbinary):
    """A topic is created, listed, described and deleted."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        assert "T is on broker-a" in await shell.run("topic", "create", "T", "-r", "3", "-w", "2")
        assert await shell.json("topic", "list") == [
            {
                "topic": "T",
                "brokers": ["broker-a"],
                "read_queues": 3,
                "write_queues": 2,
                "perm": "RW-",
            }
        ]
        assert "TBW102" in await shell.run("topic", "list", "--all")
        (row,) = await shell.json("topic", "route", "T")
        assert row["addresses"] == [f"0={cluster.broker().address}"]
        stats = await shell.json("topic", "stats", "T")
        assert (stats["messages"], len(stats["queues"])) == (0, 3)
        assert "0 messages" in await shell.run("topic", "stats", "T")
        await shell.run("topic", "delete", "T", "--yes")
        assert await shell.json("topic", "list") == []
        await shell.run("topic", "stats", "T", code=1)
        assert shell.error.startswith("mailboat: no route for topic T")
        assert len(shell.error.splitlines()) == 1


async def test_groups_and_offsets(tmp_path: Path, capsysbinary):
    """A group is created, its lag and offsets are shown, and it can be moved."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            for number in range(8):
                await producer.send(Message("T", b"%d" % number))
        await shell.run("group", "create", "C", "--retry-max-times", "3")
        await shell.run("offset", "reset", "C", "T", "--to", "last")
        (row,) = await shell.json("group", "list")
        assert row == {
            "group": "C",
            "members": 0,
            "type": None,
            "model": None,
            "topics": ["T"],
            "lag": 0,
        }
        moved = await shell.json("offset", "reset", "C", "T", "--to", "first")
        assert {row["new_offset"] for row in moved} == {0}
        shown = await shell.json("offset", "show", "C", "-t", "T")
        assert [row["lag"] for row in shown] == [2, 2, 2, 2]
        assert "lag 8" in await shell.run("group", "lag", "C")
        assert await shell.json("group", "members", "C") == []
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            assert (await admin.groups.configs())["C"] == SubscriptionGroupConfig(
                "C", retry_max_times=3
            )


async def test_messages(tmp_path: Path, capsysbinary):
    """A message is found by both ids, by key and by place, and topics can be browsed."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            batch = [Message("T", b"%d" % number, keys=f"k{number}") for number in range(50)]
            result = await producer.send_batch(batch)
        queue_id = str(result.message_queue.queue_id)
        ways = (
            ("message", "by-id", result.offset_message_id.split(",")[7]),
            ("message", "by-id", result.message_id.split(",")[7], "-t", "T"),
            ("message", "by-key", "T", "k7"),
            ("message", "by-offset", "T", "broker-a", queue_id, "7"),
        )
        for words in ways:
            (row,) = await shell.json(*words)
            assert (row["body"], row["key"]) == ("7", "k7")
        first = await shell.json("message", "browse", "T", "--max", "5")
        assert [row["body"] for row in first] == ["0", "1", "2", "3", "4"]
        last = await shell.json("message", "browse", "T", "--max", "5", "--from", "last")
        assert [row["body"] for row in last] == ["45", "46", "47", "48", "49"]
        table = await shell.run("message", "browse", "T", "--max", "2")
        assert result.message_id.split(",")[1] in table
        await shell.run("message", "by-id", "nonsense", code=1)
        assert "--topic" in shell.error
        assert await shell.json("message", "by-key", "T", "nothing") == []


async def test_clusters_and_brokers(tmp_path: Path, capsysbinary):
    """Clusters, brokers, their numbers and their settings are shown."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        shell = Shell(cluster, capsysbinary)
        assert await shell.json("cluster", "list") == [
            {"cluster": "DefaultCluster", "brokers": ["broker-a", "broker-b"]}
        ]
        rows = await shell.json("cluster", "brokers", "--full")
        assert [row["address"] for row in rows] == [cluster.broker(i).address for i in (0, 1)]
        assert all(row["version"] == "V5_3_3" for row in rows)
        assert rows[0]["runtime"]["brokerActive"] == "true"
        config = await shell.json("cluster", "config", "broker-b")
        assert config["brokerName"] == "broker-b"
        assert "broker-b" in await shell.run("cluster", "config", "broker-b")


async def test_produce_waits_for_a_broker(tmp_path: Path, capsysbinary):
    """A broker that restarts in the middle costs time and no line."""
    path = tmp_path / "lines"
    await asyncio.to_thread(path.write_bytes, b"".join(b"%d\n" % i for i in range(20_000)))
    async with Cluster(tmp_path / "cluster") as cluster:
        shell = Shell(cluster, capsysbinary)
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            await producer.send(Message("T", b"-1"))
        await cluster.stop_broker()
        producing = asyncio.ensure_future(shell.run("produce", "T", "-f", str(path)))
        await asyncio.sleep(0)
        await cluster.start_broker(0)
        await producing
        out = await shell.run("consume", "T", "--count", "20001", "--timeout", "9")
        assert set(map(int, out.split())) == set(range(-1, 20_000))
