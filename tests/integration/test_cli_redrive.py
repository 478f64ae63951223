"""`mailboat message redrive` against real brokers, with dead letters that really died."""

import asyncio
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from cli_shell import Shell, committed, length, make_topic, next_ms, send, stored, until
from test_cli_odd import NOT_PACKED, send_raw

from mailboat.cli import servers
from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    StartPoint,
)
from mailboat.client.admin import redrive
from mailboat.client.admin.redrive import Destination, Redrive, Selection
from mailboat.client.send_result import SendResult, SendStatus
from mailboat.errors import BrokerError, ConnectionLostError, MailboatError
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.sys_flag import COMPRESSED
from mailboat.protocol.codes import ResponseCode
from mailboat.testing.cluster import Cluster

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
Capture = pytest.CaptureFixture[bytes]


async def let_die(cluster: Cluster, group: str, topic: str, dead: int) -> None:
    """Let a group fail at every message of a topic, once, until it has so many dead letters."""

    async def handler(_: list[MessageExt]) -> None:
        raise ValueError("bad message")

    async def is_dead() -> bool:
        return await length(cluster, f"%DLQ%{group}") >= dead

    consumer = PushConsumer(
        group, namesrv=cluster.namesrv_addresses, start_point=FIRST, max_reconsume_times=0
    )
    consumer.subscribe(topic, "*", handler)
    async with consumer:
        await until(is_dead)


def own(message: MessageExt) -> dict[str, str]:
    """Return the properties of a message but the checksum of its place in the log."""
    return {name: value for name, value in message.properties.items() if name != "__CRC32#"}


async def test_dead_letters_go_back_where_they_came_from(tmp_path: Path, capsysbinary: Capture):
    """After a redrive each dead letter is in its own topic again, as the producer sent it."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        ids: dict[str, list[str]] = {}
        for topic, count in (("T", 40), ("U", 5)):
            await make_topic(cluster, topic, 2)
            ids[topic] = await send(cluster, topic, range(count))
        await let_die(cluster, "C", "T", 40)
        await let_die(cluster, "C", "U", 45)
        words = ("message", "redrive", "C")
        to = [{"topic": "T", "messages": 40}, {"topic": "U", "messages": 5}]
        planned = await shell.json(*words, "--dry-run")
        assert (planned["redriven"], planned["to"], planned["dry_run"]) == (45, to, True)
        assert await length(cluster, "T") == 40
        assert "would redrive 45 of 45" in await shell.run(*words, "--dry-run")
        done = await shell.json(*words)
        assert (done["read"], done["redriven"], done["to"]) == (45, 45, to)
        for topic, count in (("T", 40), ("U", 5)):
            by_id: dict[str | None, list[MessageExt]] = {}
            for message in await stored(cluster, topic):
                by_id.setdefault(message.unique_key, []).append(message)
            assert sorted(map(str, by_id)) == sorted(ids[topic])
            assert [len(copies) for copies in by_id.values()] == [2] * count
            for first, second in by_id.values():
                assert (first.body, own(first)) == (second.body, own(second))
                assert second.reconsume_times == 0
        assert "no dead letters after position" in await shell.run(*words)
        assert (await shell.json(*words, "--restart", "--dry-run"))["redriven"] == 45
        assert [row["group"] for row in await shell.json("group", "list")] == ["C"]
        lag = await shell.json("group", "lag", "mailboat-redrive-C")
        assert lag["lag"] == 0
        # Dead letters of a later group of this name begin at 0 again, so the position goes too.
        await shell.run("group", "delete", "C", "--yes")
        groups = {row["group"] for row in await shell.json("group", "list", "--all")}
        assert groups & {"C", "mailboat-redrive-C"} == set()


async def test_standing_follows_failures(tmp_path: Path, capsysbinary: Capture):
    """A message that failed too often is a dead letter of that group, and consumed by others."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T", 2)
        (message_id,) = await send(cluster, "T", range(1))
        await let_die(cluster, "C", "T", 1)
        await shell.run("group", "create", "D")
        await shell.run("offset", "skip", "D", "T")

        async def is_committed() -> bool:
            return (await committed(cluster))[0] == 1

        # The consumer stores its offset after the message is safe among the dead letters.
        await until(is_committed)
        shown = await shell.json("message", "show", message_id, "-t", "T")
        assert [(row["group"], row["state"]) for row in shown["groups"]] == [
            ("C", "dead letter"),
            ("D", "consumed"),
        ]


async def put_dead_letters(cluster: Cluster, group: str, numbers: range, origin: str) -> list[str]:
    """Store messages as the broker stores dead letters, without the way there."""
    return await send(cluster, f"%DLQ%{group}", numbers, RETRY_TOPIC=origin, RECONSUME_TIME="16")


async def test_some_dead_letters_go_back(tmp_path: Path, capsysbinary: Capture):
    """By time and by id exactly the chosen ones go back; a range has a position of its own."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "%DLQ%C")
        await make_topic(cluster, "T")
        ids = await put_dead_letters(cluster, "C", range(50), "T")
        begin_ms = await next_ms()
        await put_dead_letters(cluster, "C", range(50, 60), "T")
        end_ms = await next_ms()
        await put_dead_letters(cluster, "C", range(60, 70), "T")
        words = ("message", "redrive", "C")
        span = ("--begin", str(begin_ms), "--end", str(end_ms - 1))
        done = await shell.json(*words, *span)
        assert done["redriven"] == 10
        assert [int(each.body) for each in await stored(cluster, "T")] == list(range(50, 60))
        assert (await shell.json(*words, *span))["redriven"] == 0
        done = await shell.json(*words, "--id", ids[7], "--id", ids[3], "--id", ids[7])
        assert (done["redriven"], done["position_group"]) == (2, None)
        assert [int(each.body) for each in await stored(cluster, "T")][10:] == [7, 3]
        (letter,) = await shell.json("message", "by-id", ids[9], "-t", "%DLQ%C")
        await shell.run(*words, "--id", letter["offset_message_id"])
        assert [int(each.body) for each in await stored(cluster, "T")][12:] == [9]
        # The position of all is still at the beginning.
        assert (await shell.json(*words, "--dry-run"))["redriven"] == 70
        assert "no dead letter with id nope" in await shell.fails(*words, "--id", "nope")
        assert "--id goes with none" in await shell.fails(
            *words, "--id", ids[0], "--restart", code=2
        )
        assert "has no dead letters" in await shell.fails("message", "redrive", "D")


async def test_dead_letters_for_one_group_only(tmp_path: Path, capsysbinary: Capture):
    """With --to-group the letters come again to their group, under their own topic."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        await send(cluster, "T", range(4))
        await let_die(cluster, "C", "T", 4)
        done = await shell.json("message", "redrive", "C", "--to-group")
        assert done["to"] == [{"topic": "%RETRY%C", "messages": 4}]
        assert await length(cluster, "T") == 4
        found: asyncio.Queue[MessageExt] = asyncio.Queue()

        async def handler(messages: list[MessageExt]) -> None:
            for message in messages:
                await found.put(message)

        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", handler)
        async with consumer, asyncio.timeout(60):
            messages = [await found.get() for _ in range(4)]
        assert sorted(int(each.body) for each in messages) == [0, 1, 2, 3]
        assert {each.topic for each in messages} == {"T"}


async def test_letters_without_a_way_back_are_asked_about(tmp_path: Path, capsysbinary: Capture):
    """A letter that does not say where it came from stops the run before it, until --topic."""
    async with Cluster(tmp_path, options={"autoCreateTopicEnable": "false"}) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "%DLQ%C")
        await make_topic(cluster, "T")
        await put_dead_letters(cluster, "C", range(5), "T")
        await send(cluster, "%DLQ%C", range(5, 6))
        words = ("message", "redrive", "C", "--batch", "5")
        refused = await shell.fails(*words)
        assert "name one for such letters with --topic" in refused
        assert "5 messages were redriven before" in refused
        assert (await shell.json(*words, "--topic", "T"))["to"] == [{"topic": "T", "messages": 1}]
        assert [int(each.body) for each in await stored(cluster, "T")] == list(range(6))
        await put_dead_letters(cluster, "C", range(6, 7), "Gone")
        assert "no route for topic Gone" in await shell.fails(*words)
        await shell.run("topic", "update", "%DLQ%C", "--perm", "w")
        assert "topic update %DLQ%C --perm rw" in await shell.fails(*words)


class FailingProducer(Producer):
    """Refuses one message, once, after those before it were sent."""

    def __init__(self, group: str, *, namesrv: str, body: bytes) -> None:
        """Refuse the message with `body`."""
        super().__init__(group, namesrv=namesrv)
        self.body: bytes | None = body

    async def send_stored(self, message: Message, sys_flag: int, **options: object) -> SendResult:
        """Send, or raise what a broker answers that has no room."""
        if message.body == self.body:
            self.body = None
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "no room")
        return await super().send_stored(message, sys_flag, **options)  # type: ignore[arg-type]


class DoubtfulProducer(Producer):
    """Stores one message, and answers at first as one that does not know."""

    failure: MailboatError | None = None

    async def send_stored(self, message: Message, sys_flag: int, **options: object) -> SendResult:
        """Send; then the answer is lost, or says that the flush took too long."""
        result = await super().send_stored(message, sys_flag, **options)  # type: ignore[arg-type]
        if message.body != b"2" or type(self).failure is None:
            return result
        failure, type(self).failure = type(self).failure, None
        if isinstance(failure, ConnectionLostError):
            raise failure
        return replace(result, status=SendStatus.FLUSH_DISK_TIMEOUT)


async def test_letter_whose_answer_was_lost_keeps_its_id(
    tmp_path: Path, capsysbinary: Capture, monkeypatch: pytest.MonkeyPatch
):
    """Both copies of it have the same id, though the letter had none of its own."""
    monkeypatch.setattr(servers, "Producer", DoubtfulProducer)
    monkeypatch.setattr(redrive, "RETRY_PAUSE_S", 0.01)
    async with Cluster(tmp_path) as cluster:
        await make_topic(cluster, "%DLQ%C")
        await make_topic(cluster, "T")
        await put_dead_letters(cluster, "C", range(4), "T")
        DoubtfulProducer.failure = ConnectionLostError("lost")
        take = Destination.message

        def without_id(destination: Destination, letter: MessageExt) -> Message:
            message = take(destination, letter)
            del message.properties["UNIQ_KEY"]
            return message

        monkeypatch.setattr(Destination, "message", without_id)
        shell = Shell(cluster, capsysbinary)
        await shell.run("message", "redrive", "C")
        ids = [each.unique_key for each in await stored(cluster, "T")]
        assert (len(ids), len(set(ids))) == (5, 4)


async def test_letter_that_may_be_stored_is_told_and_comes_again(
    tmp_path: Path, capsysbinary: Capture, monkeypatch: pytest.MonkeyPatch
):
    """Exit code 5 and how many went before; the next run goes on at that letter."""
    monkeypatch.setattr(servers, "Producer", DoubtfulProducer)
    async with Cluster(tmp_path) as cluster:
        await make_topic(cluster, "%DLQ%C")
        await make_topic(cluster, "T")
        await put_dead_letters(cluster, "C", range(4), "T")
        DoubtfulProducer.failure = MailboatError("late")
        shell = Shell(cluster, capsysbinary)
        said = await shell.fails("message", "redrive", "C", code=5)
        assert "answered FLUSH_DISK_TIMEOUT, so a message may or may not be stored" in said
        assert said.endswith("(3 messages were redriven before; run it again to go on)")
        await shell.run("message", "redrive", "C")
        found = sorted(int(each.body) for each in await stored(cluster, "T"))
        assert found == [0, 1, 2, 2, 3, 3]


async def test_failure_keeps_what_went_before_it(tmp_path: Path, capsysbinary: Capture):
    """A letter that cannot be sent stops the run at that letter; the next run begins with it."""
    async with Cluster(tmp_path) as cluster:
        await make_topic(cluster, "%DLQ%C")
        await make_topic(cluster, "T")
        await put_dead_letters(cluster, "C", range(20), "T")
        namesrv = cluster.namesrv_addresses
        async with (
            Admin(namesrv=namesrv) as admin,
            FailingProducer("P", namesrv=namesrv, body=b"13") as producer,
        ):
            first, second = (
                Redrive(admin, producer, Destination("C"), Selection(), batch_size=5)
                for _ in range(2)
            )
            progress: list[int] = []
            assert await first.prepare() == 20
            with pytest.raises(BrokerError, match="no room"):
                await first.run(progress.append)
            # Two batches whole, and of the third all but the refused one.
            assert (sum(progress), first.report.redriven_total) == (10, 14)
            assert await second.prepare() == 7
            assert (await second.run(progress.append)).redriven_total == 7
        # Number 14 was in the batch of the refused 13 and comes twice.
        found = sorted(int(each.body) for each in await stored(cluster, "T"))
        assert found == sorted([*range(20), 14])


@pytest.mark.parametrize("to_group", [False, True])
async def test_letter_that_cannot_be_unpacked_goes_back_as_it_is(
    tmp_path: Path, capsysbinary: Capture, to_group: bool
):
    """Whoever sent it so, it keeps no other letter back."""
    async with Cluster(tmp_path) as cluster:
        for topic in ("%DLQ%C", "%RETRY%C", "T"):
            await make_topic(cluster, topic)
        await put_dead_letters(cluster, "C", range(2), "T")
        name = {"i": "RETRY_TOPIC\x01T\x02"}
        await send_raw(cluster, NOT_PACKED, "%DLQ%C", f=COMPRESSED, **name)
        await send_raw(cluster, zlib.compress(b"packed"), "%DLQ%C", f=COMPRESSED, **name)
        await put_dead_letters(cluster, "C", range(2, 4), "T")
        shell = Shell(cluster, capsysbinary)
        done = await shell.json("message", "redrive", "C", *(["--to-group"] if to_group else []))
        assert (done["read"], done["redriven"]) == (6, 6)
        found = await stored(cluster, "%RETRY%C" if to_group else "T")
        bad, *good = sorted(found, key=lambda each: each.body != NOT_PACKED)
        assert (bad.body, bad.sys_flag) == (NOT_PACKED, COMPRESSED)
        assert sorted(each.payload() for each in good) == [b"0", b"1", b"2", b"3", b"packed"]


async def test_position_of_other_dead_letters_is_no_position(tmp_path: Path):
    """A position behind the end is from before the topic was made anew: nothing is passed over."""
    async with Cluster(tmp_path) as cluster:
        await make_topic(cluster, "%DLQ%C")
        await make_topic(cluster, "T")
        await put_dead_letters(cluster, "C", range(20), "T")
        namesrv = cluster.namesrv_addresses
        async with Admin(namesrv=namesrv) as admin, Producer("P", namesrv=namesrv) as producer:
            await admin.groups.create(SubscriptionGroupConfig("old"))
            for committed_offset, expected in ((21, 20), (20, 0), (19, 1)):
                # As a broker has it that takes any offset; ours refuses the first one.
                cluster.broker().offsets.commit("old", "%DLQ%C", 0, committed_offset)
                redrive = Redrive(
                    admin, producer, Destination("C"), Selection(), position_group="old"
                )
                assert await redrive.prepare() == expected


@pytest.mark.crash
async def test_killed_redrive_loses_nothing(tmp_path: Path, capsysbinary: Capture):
    """After kill -9 the next run ends the work; what comes twice is of one batch."""
    count, batch = 1500, 32
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "%DLQ%C", 2)
        await make_topic(cluster, "T")
        async with Producer("P", namesrv=cluster.namesrv_addresses) as producer:
            queues = await producer.queues("%DLQ%C")
            for begin in range(0, count, 500):
                sending = (
                    producer.send(
                        Message("%DLQ%C", b"%d" % number, properties={"RETRY_TOPIC": "T"}),
                        queue=queues[number % 2],
                    )
                    for number in range(begin, begin + 500)
                )
                await asyncio.gather(*sending)
        kills = 0
        for wanted in (200, 600):
            process = await shell.start("message", "redrive", "C")

            async def is_under_way(wanted: int = wanted) -> bool:
                return await length(cluster, "T") >= wanted

            try:
                await until(is_under_way, within_s=60, pause_s=0)
            finally:
                process.kill()
                await process.wait()
            kills += 1
        assert await length(cluster, "T") < count
        done = await shell.json("message", "redrive", "C")
        assert 0 < done["redriven"] < count - 500
        found = [int(each.body) for each in await stored(cluster, "T")]
        assert set(found) == set(range(count))
        assert len(found) - count <= kills * batch
