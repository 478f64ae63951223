"""The administration commands against real name servers and brokers, compared with what is stored.

Expected values come from what the test itself sent: so many messages, in these queues, with these
ids.
"""

import asyncio
import json
import os
import pty
import signal
from contextlib import aclosing
from pathlib import Path

import pytest
from cli_shell import Shell, committed, make_topic, next_ms, send, until

from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StartPoint,
)
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.testing.cluster import Cluster

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
Capture = pytest.CaptureFixture[bytes]


# -- topics ---------------------------------------------------------------------------------------


async def test_topic_is_shown_whole(tmp_path: Path, capsysbinary: Capture):
    """Brokers, settings, bounds of each queue and groups of a topic are one document."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        shell = Shell(cluster, capsysbinary)
        await shell.run("topic", "create", "T", "-r", "2", "-w", "2", "--order")
        await send(cluster, "T", range(10))
        await shell.run("group", "create", "C")
        await shell.run("offset", "reset", "C", "T", "--to", "first")
        shown = await shell.json("topic", "show", "T")
        assert {name: shown[name] for name in ("topic", "messages", "order", "groups")} == {
            "topic": "T",
            "messages": 10,
            "order": {"broker-a": 2, "broker-b": 2},
            "groups": ["C"],
        }
        assert [(row["broker"], row["order"], row["perm"]) for row in shown["brokers"]] == [
            ("broker-a", True, "RW-"),
            ("broker-b", True, "RW-"),
        ]
        # Ten messages in turn over four queues.
        assert [(row["broker"], row["queue"], row["messages"]) for row in shown["queues"]] == [
            ("broker-a", 0, 3),
            ("broker-a", 1, 3),
            ("broker-b", 0, 2),
            ("broker-b", 1, 2),
        ]
        text = await shell.run("topic", "show", "T")
        assert "Brokers" in text
        assert "broker-a=2, broker-b=2" in text


async def test_topic_changes_only_what_is_named(tmp_path: Path, capsysbinary: Capture):
    """An update keeps the other settings of each broker, and the order of an ordered topic."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        shell = Shell(cluster, capsysbinary)
        await shell.run("topic", "create", "T", "-r", "3", "-w", "3", "-b", "broker-a")
        await shell.run("topic", "create", "T", "-r", "5", "-w", "5", "-b", "broker-b")
        changed = await shell.json("topic", "update", "T", "--perm", "r", "--order")
        assert changed == {
            "topic": "T",
            "brokers": [
                {"broker": name, "read_queues": n, "write_queues": n, "perm": "R--", "order": True}
                for name, n in (("broker-a", 3), ("broker-b", 5))
            ],
        }
        await shell.run("topic", "update", "T", "-w", "2", "-b", "broker-b")
        assert (await shell.json("topic", "show", "T"))["order"] == {"broker-a": 3, "broker-b": 2}
        await shell.run("topic", "update", "T", "--no-order")
        assert (await shell.json("topic", "show", "T"))["order"] == {}
        (row,) = await shell.json("topic", "list")
        assert (row["brokers"], row["perm"]) == (["broker-a", "broker-b"], "R--")


async def test_topic_mistakes_are_one_sentence(tmp_path: Path, capsysbinary: Capture):
    """What is missing, unknown or not confirmed is said in one sentence, with the right code."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        assert "create it first" in await shell.fails("topic", "update", "T", "--perm", "r")
        assert "name something to change" in await shell.fails("topic", "update", "T", code=2)
        wrong = ("topic", "create", "T", "--attribute", "x")
        assert "NAME=VALUE" in await shell.fails(*wrong, code=2)
        wrong = ("topic", "create", "T", "-b", "broker-z")
        assert "brokers known: broker-a" in await shell.fails(*wrong)
        code, out, err = await shell.process("topic", "delete", "T")
        assert (code, out) == (2, b"")
        assert b"add --yes" in err
        assert "no broker has a topic T" in await shell.fails("topic", "delete", "T", "--yes")
        await make_topic(cluster, "T")
        elsewhere = ("topic", "delete", "T", "-c", "Nowhere", "--yes")
        assert "Nowhere" in await shell.fails(*elsewhere)
        await shell.run("topic", "delete", "T", "--yes")


async def test_delete_asks_on_a_terminal(tmp_path: Path, capsysbinary: Capture):
    """A topic is deleted after the answer y, and stays after the answer n."""
    async with Cluster(tmp_path) as cluster, aclosing(Shell(cluster, capsysbinary)) as shell:
        await make_topic(cluster, "T")
        for answer, exit_code, left in ((b"n\n", 130, True), (b"y\n", 0, False)):
            parent, child = pty.openpty()
            try:
                process = await shell.start("topic", "delete", "T", stdin=child)
                os.write(parent, answer)
                _, err = await asyncio.wait_for(process.communicate(), 60)
            finally:
                os.close(parent)
                os.close(child)
            assert process.returncode == exit_code, err
            assert b"Delete topic T" in err
            assert [row["topic"] for row in await shell.json("topic", "list")] == ["T"] * left


# -- groups and offsets ---------------------------------------------------------------------------


async def test_group_is_shown_with_the_member_of_each_queue(tmp_path: Path, capsysbinary: Capture):
    """Settings, members, subscriptions and each queue's lag with its reader are one document."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T", 2)
        await shell.run("group", "create", "C", "--retry-max-times", "3")
        await send(cluster, "T", range(10))
        await shell.run("offset", "reset", "C", "T", "--offset", "3", "-q", "0", "-q", "1")
        end = asyncio.Event()

        async def handler(_: list[MessageExt]) -> None:
            await end.wait()

        one, two = (PushConsumer("C", namesrv=cluster.namesrv_addresses) for _ in range(2))
        for consumer in (one, two):
            consumer.subscribe("T", "odd || even", handler)
        async with one, two:

            async def is_shared() -> bool:
                rows = await shell.json("group", "members", "C")
                return [sum("T@" in name for name in row["queues"]) for row in rows] == [1, 1]

            await until(is_shared)
            shown = await shell.json("group", "show", "C")
            lag = await shell.json("group", "lag", "C", "-t", "T")
            members = await shell.json("group", "members", "C")
            text = await shell.run("group", "show", "C")
            inside = await shell.json("group", "member", "C", members[0]["client_id"])
            end.set()
        # The group's members share the queues in the order of their ids.
        ids = dict(enumerate(sorted(row["client_id"] for row in members)))
        assert len(ids) == 2
        queues = [row for row in shown["queues"] if row["topic"] == "T"]
        assert [(row["broker_offset"], row["consumer_offset"], row["lag"]) for row in queues] == [
            (5, 3, 2)
        ] * 2
        assert {row["queue"]: row["member"] for row in queues} == ids
        assert shown["settings"][0]["retry_max_times"] == 3
        assert {"topic": "T", "type": "TAG", "expression": "odd || even"} in shown["subscriptions"]
        assert (shown["model"], shown["type"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
        assert lag["lag"] == 4
        assert members == shown["members"]
        assert {
            row["client_id"]: [name for name in row["queues"] if name.startswith("T@")]
            for row in members
        } == {client_id: [f"T@broker-a:{queue_id}"] for queue_id, client_id in ids.items()}
        assert [(row["queue"], row["held_messages"]) for row in inside["queues"]][-1] == (0, 2)
        assert {"topic": "T", "type": "TAG", "expression": "odd || even"} in inside["subscriptions"]
        assert all(title in text for title in ("Settings", "Members", "Subscriptions", "Queues"))


async def test_group_changes_only_what_is_named(tmp_path: Path, capsysbinary: Capture):
    """An update keeps the other settings; a group that is stopped may not consume."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await shell.run("group", "create", "C", "--retry-max-times", "3", "--no-broadcast")
        await shell.json("group", "update", "C", "--no-consume")
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            assert (await admin.groups.configs())["C"] == SubscriptionGroupConfig(
                "C", consume_enable=False, consume_broadcast_enable=False, retry_max_times=3
            )
        assert "create it first" in await shell.fails("group", "update", "D", "--consume")
        for words in (("show",), ("lag",), ("members",)):
            assert "there is no group D" in await shell.fails("group", *words, "D")
        assert "there is no group D" in await shell.fails("offset", "show", "D")
        assert await shell.json("group", "members", "C") == []
        await shell.run("group", "delete", "C", "--yes")
        assert "knows a group C" in await shell.fails("group", "delete", "C", "--yes")
        assert await shell.json("group", "list") == []


async def test_offsets_are_moved_by_time_queue_and_place(tmp_path: Path, capsysbinary: Capture):
    """A dry run says before and after and changes nothing; the real run does what it said."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T", 2)
        await send(cluster, "T", range(8))
        middle_ms = await next_ms()
        await send(cluster, "T", range(8, 20))
        await shell.run("group", "create", "C")
        # Ten messages in each queue, four of them before the middle.
        moves = {
            ("--to", "latest"): [10, 10],
            ("--to", str(middle_ms)): [4, 4],
            ("--to", "earliest"): [0, 0],
            ("--offset", "7", "-b", "broker-a", "-q", "1"): [0, 7],
        }
        before: list[int | None] = [None, None]
        for words, after in moves.items():
            planned = await shell.json("offset", "reset", "C", "T", *words, "--dry-run")
            ids = [row["queue"] for row in planned]
            assert await committed(cluster) == before
            assert [row["old_offset"] for row in planned] == [before[i] for i in ids]
            assert [row["new_offset"] for row in planned] == [after[i] for i in ids]
            assert [row["new_lag"] for row in planned] == [10 - after[i] for i in ids]
            assert await shell.json("offset", "reset", "C", "T", *words) == planned
            assert await committed(cluster) == after
            before = list(after)
        skipped = await shell.json("offset", "skip", "C", "T", "-q", "0")
        assert [(row["old_offset"], row["new_offset"], row["lag"]) for row in skipped] == [
            (0, 10, 10)
        ]
        assert await committed(cluster) == [10, 7]
        for words in (
            ("group", "lag", "C", "-t", "Typo"),
            ("offset", "show", "C", "-t", "Typo"),
            ("offset", "reset", "Typo", "T", "--to", "first", "--dry-run"),
            ("offset", "skip", "Typo", "T", "--dry-run"),
            ("offset", "clone", "C", "Typo", "--dry-run"),
        ):
            assert "Typo" in await shell.fails(*words)
        outside = ("offset", "reset", "C", "T", "--offset", "11", "-q", "0")
        assert "from 0 to 10" in await shell.fails(*outside)
        assert "has no queue 9" in await shell.fails("offset", "skip", "C", "T", "-q", "9")
        assert "--queue-id" in await shell.fails(
            "offset", "reset", "C", "T", "--offset", "1", code=2
        )
        assert "either --to" in await shell.fails("offset", "reset", "C", "T", code=2)


async def test_offsets_are_cloned(tmp_path: Path, capsysbinary: Capture):
    """A group gets the stored offsets of another one, and none where that one has none."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T", 2)
        await send(cluster, "T", range(20))
        await shell.run("group", "create", "C")
        await shell.run("group", "create", "D")
        async with PullConsumer("C", namesrv=cluster.namesrv_addresses) as consumer:
            queue = MessageQueue("T", "broker-a", 1)
            consumer.assign([queue])
            consumer.seek(queue, 6)
            await consumer.commit()
        planned = await shell.json("offset", "clone", "C", "D", "--dry-run")
        assert await committed(cluster, "D") == [None, None]
        assert await shell.json("offset", "clone", "C", "D") == planned
        assert [(row["queue"], row["old_offset"], row["new_offset"]) for row in planned] == [
            (1, None, 6)
        ]
        assert await committed(cluster, "D") == [None, 6]
        assert "nothing to clone" in await shell.fails("offset", "clone", "E", "D")


# -- clusters -------------------------------------------------------------------------------------


async def test_brokers_tell_their_numbers(tmp_path: Path, capsysbinary: Capture):
    """Today's messages are those that were sent, and the oldest one is the first."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        await send(cluster, "T", range(7))
        (row,) = await shell.json("cluster", "brokers", "--full")
        assert (row["broker"], row["id"], row["address"]) == (
            "broker-a",
            0,
            cluster.broker().address,
        )
        assert row["in_today"] == 7
        (first,) = await shell.json("message", "browse", "T", "--max", "1")
        assert row["oldest_message"] == first["store_time"]
        told = await shell.fails("cluster", "brokers", "-c", "Nowhere")
        assert "there is no cluster Nowhere" in told
        async with Producer("shop", namesrv=cluster.namesrv_addresses) as producer:
            await producer.send(Message("T", b"x"))
            await until(lambda: is_listed(shell, "shop"))
            (row,) = await shell.json("cluster", "producers", "shop")
        assert (row["language"], row["broker"]) == ("PYTHON", "broker-a")
        numbers = await shell.json("cluster", "show", "broker-a")
        assert numbers["commitLogMinOffset"] == "0"
        assert "brokers known: broker-a" in await shell.fails("cluster", "show", "broker-z")


async def is_listed(shell: Shell, group: str) -> bool:
    """Tell whether a producer group has a member."""
    return group in {row["group"] for row in await shell.json("cluster", "producers")}


async def test_settings_are_read_and_changed(tmp_path: Path, capsysbinary: Capture):
    """A live key is changed and read back; one that needs a restart is refused with a reason."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        assert await shell.json("cluster", "config", "broker-a", "brokerName") == {
            "brokerName": "broker-a"
        }
        (row,) = await shell.json("cluster", "configure", "broker-a", "fileReservedTime=48")
        assert (row["key"], row["new_value"]) == ("fileReservedTime", "48")
        assert cluster.broker().settings.store.file_reserved_time == 48
        refused = await shell.fails("cluster", "configure", "broker-a", "storePathRootDir=/tmp/x")
        assert refused.startswith("mailboat: refused with ")
        assert "storePathRootDir" in refused
        unknown = await shell.fails("cluster", "config", "broker-a", "nope", code=2)
        assert "has no key 'nope'" in unknown
        wrong = await shell.fails("cluster", "configure", "broker-a", "nope", code=2)
        assert "KEY=VALUE" in wrong
        configs = await shell.json("cluster", "namesrv-config")
        assert list(configs) == [cluster.namesrv_addresses]


async def test_write_permission_goes_and_comes(tmp_path: Path, capsysbinary: Capture):
    """Without it the routes name no queue of the broker for producers."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        (row,) = await shell.json("cluster", "wipe-write-perm", "broker-a", "--yes")
        assert row["name_server"] == cluster.namesrv_addresses
        assert row["topics_changed"] > 0
        assert (await shell.json("topic", "route", "T"))[0]["perm"] == "R--"
        assert "no queue that takes" in await shell.fails("message", "send", "T", "x")
        await shell.run("cluster", "add-write-perm", "broker-a")
        assert (await shell.json("topic", "route", "T"))[0]["perm"] == "RW-"
        await shell.fails("cluster", "wipe-write-perm", "broker-z", "--yes")


# -- messages -------------------------------------------------------------------------------------


async def test_topic_is_browsed(tmp_path: Path, capsysbinary: Capture):
    """Time range, tags, properties, queue and number select exactly what was stored so."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T", 3)
        await send(cluster, "T", range(300))
        begin_ms = await next_ms()
        await send(cluster, "T", range(300, 310))
        end_ms = await next_ms()
        await send(cluster, "T", range(310, 320))

        async def bodies(*words: str) -> list[int]:
            rows = await shell.json("message", "browse", "T", *words)
            assert {row["broker"] for row in rows} <= {"broker-a"}
            return [int(row["body"]) for row in rows]

        ways = {
            ("--max", "5"): range(5),
            ("--from", "last", "--max", "5"): range(315, 320),
            ("--from", str(begin_ms), "--to", str(end_ms - 1)): range(300, 310),
            ("--tags", "odd", "--max", "4"): range(1, 9, 2),
            ("--tags", "odd || even", "--max", "4"): range(4),
            ("--tags", "odd", "--from", "last", "--max", "4"): range(313, 320, 2),
            ("-q", "1", "--max", "1000"): range(1, 320, 3),
            ("-b", "broker-a", "-q", "0", "-q", "2", "--max", "4"): (0, 2, 3, 5),
            ("--to", str(begin_ms - 1), "--from", "last", "--max", "2"): range(298, 300),
            ("--sql", "n BETWEEN 7 AND 9"): range(7, 10),
            ("--from", str(end_ms + 100_000)): (),
        }
        for words, expected in ways.items():
            assert await bodies(*words) == list(expected), words
        assert await bodies("--max", "1000") == list(range(320))
        assert await committed_groups(cluster) == set()
        assert "either --tags or --sql" in await shell.fails(
            "message", "browse", "T", "--tags", "a", "--sql", "a", code=2
        )
        assert "no route for topic U" in await shell.fails("message", "browse", "U")


async def committed_groups(cluster: Cluster) -> set[str]:
    """Return the groups that have an offset in T."""
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        return await admin.topics.consumer_groups("T")


async def test_new_messages_are_followed(tmp_path: Path, capsysbinary: Capture):
    """A follower prints each new message once, over a restart of the broker, until Ctrl-C."""
    async with Cluster(tmp_path) as cluster, aclosing(Shell(cluster, capsysbinary)) as shell:
        await make_topic(cluster, "T", 2)
        await send(cluster, "T", range(10))
        words = ("message", "browse", "T", "--follow", "--json")
        # Where the tests are a shell's job in the background, Ctrl-C is ignored by all children.
        own = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = await shell.start(*words, "--from", "first")
        finally:
            signal.signal(signal.SIGINT, own)
        assert process.stdout is not None
        found = [json.loads(await process.stdout.readline())["body"] for _ in range(10)]
        await send(cluster, "T", range(10, 20))
        found += [json.loads(await process.stdout.readline())["body"] for _ in range(10)]
        await cluster.stop_broker()
        await cluster.start_broker(0)
        await send(cluster, "T", range(20, 30))
        found += [json.loads(await process.stdout.readline())["body"] for _ in range(10)]
        assert sorted(map(int, found)) == list(range(30))
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, out, err) == (130, b"", b"")
        out = await shell.run(*words[:-1], "--from", "first", "--max", "3")
        assert len(out.splitlines()) == 3
        assert "leave out --to" in await shell.fails(*words[:-1], "--to", "1700000000000", code=2)


async def test_keys_are_found_in_a_time_range(tmp_path: Path, capsysbinary: Capture):
    """Of the messages with one key, those stored between two times are shown, oldest first."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        times = []
        for number in range(3):
            times.append(await next_ms())
            await send(cluster, "T", range(5, 6), turn=str(number))
        words = ("message", "by-key", "T", "k5")
        for extra, expected in (
            ((), ["0", "1", "2"]),
            (("--begin", str(times[1])), ["1", "2"]),
            (("--begin", str(times[1]), "--end", str(times[2] - 1)), ["1"]),
        ):
            rows = await shell.json(*words, *extra)
            assert [row["properties"]["turn"] for row in rows] == expected


async def test_message_is_shown_with_what_groups_did(tmp_path: Path, capsysbinary: Capture):
    """One message in full: its body, its properties, and whether each group has consumed it."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        ids = await send(cluster, "T", range(10))
        for group, offset in (("past", "6"), ("before", "5")):
            await shell.run("group", "create", group)
            await shell.run("offset", "reset", group, "T", "--offset", offset, "-q", "0")
        shown = await shell.json("message", "show", ids[5], "-t", "T")
        assert (shown["body"], shown["key"], shown["broker"]) == ("5", "k5", "broker-a")
        assert (shown["queue_offset"], shown["copies"]) == (5, 1)
        assert (shown["properties"]["n"], shown["properties"]["UNIQ_KEY"]) == ("5", ids[5])
        assert [(row["group"], row["state"]) for row in shown["groups"]] == [
            ("before", "not consumed"),
            ("past", "consumed"),
        ]
        place = ("-t", "T", "-b", "broker-a", "-q", "0", "--offset", "5")
        assert await shell.json("message", "show", *place) == shown
        assert await shell.json("message", "show", shown["offset_message_id"]) == shown
        text = await shell.run("message", "show", *place, "--hex")
        assert "00000000  35" in text
        assert "not consumed" in text
        assert "by its id, or by" in await shell.fails("message", "show", code=2)
        gone = ("message", "show", "-t", "T", "-b", "broker-a", "-q", "0", "--offset", "99")
        assert "no message at offset 99" in await shell.fails(*gone)


async def test_message_is_handed_to_a_member(tmp_path: Path, capsysbinary: Capture):
    """The member that is named handles the message once more; its failure is the exit code."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        good, bad = await send(cluster, "T", range(2))
        handled: list[bytes] = []

        async def handler(messages: list[MessageExt]) -> None:
            handled.extend(message.body for message in messages)
            if messages[0].body == b"1":
                raise ValueError("one is too many")

        await shell.run("group", "create", "C")
        await shell.run("offset", "skip", "C", "T")
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses)
        consumer.subscribe("T", "*", handler)
        async with consumer:

            async def is_online() -> bool:
                return bool(await shell.json("group", "members", "C"))

            await until(is_online)
            client_id = (await shell.json("group", "members", "C"))[0]["client_id"]
            words = ("C", client_id, "-t", "T")
            document = await shell.json("message", "deliver", good, *words)
            assert document["result"] == "CR_SUCCESS"
            out = await shell.run("message", "deliver", bad, *words, code=1)
            assert "one is too many" in out
            gone = ("message", "deliver", good, "C", "nobody", "-t", "T")
            assert "refused with" in await shell.fails(*gone)
        assert handled == [b"0", b"1"]


async def test_one_message_is_sent(tmp_path: Path, capsysbinary: Capture):
    """What was said on the command line, or came from standard input, is stored in that queue."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T", 4)
        words = ("message", "send", "T", "hello", "--tags", "a", "-k", "k1", "-k", "k2")
        sent = await shell.json(*words, "-p", "p=v=w", "-q", "3")
        assert (sent["status"], sent["broker"], sent["queue"]) == ("SEND_OK", "broker-a", 3)
        (found,) = await shell.json("message", "by-id", sent["offset_message_id"])
        assert (found["body"], found["tags"], found["key"]) == ("hello", "a", "k1 k2")
        assert found["properties"] == {"p": "v=w"}
        data = bytes(range(256))
        code, out, err = await shell.process("message", "send", "T", "-", "--json", data=data)
        assert code == 0, err
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            stored = await admin.messages.by_offset_id(json.loads(out)["offset_message_id"])
        assert stored.body == data
        assert "NAME=VALUE" in await shell.fails("message", "send", "T", "x", "-p", "p", code=2)
        assert "no such queue" in await shell.fails("message", "send", "T", "x", "-q", "9")


# -- every command ---------------------------------------------------------------------------------


async def test_missing_servers_are_named(tmp_path: Path, capsysbinary: Capture):
    """Without a name server every command says which address it tried and where to set it."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        address = cluster.namesrv_addresses
    for words in (("topic", "list"), ("message", "redrive", "C"), ("offset", "show", "C")):
        sentence = await shell.fails(*words)
        assert f"no connection to {address}" in sentence
        assert "--namesrv or MAILBOAT_NAMESRV" in sentence


async def test_progress_is_for_terminals_only(tmp_path: Path, capsysbinary: Capture):
    """A bar moves on a terminal, on standard error; a script sees nothing but the document."""
    async with Cluster(tmp_path) as cluster, aclosing(Shell(cluster, capsysbinary)) as shell:
        await make_topic(cluster, "T")
        await send(cluster, "T", range(50))
        words = ("message", "browse", "T", "--json")
        code, piped, err = await shell.process(*words)
        assert (code, err) == (0, b"")
        parent, child = pty.openpty()
        try:
            process = await shell.start(*words, stderr=child)
            out, _ = await asyncio.wait_for(process.communicate(), 60)
            shown = await asyncio.to_thread(os.read, parent, 65536)
        finally:
            os.close(parent)
            os.close(child)
        assert out == piped
        assert b"messages" in shown
