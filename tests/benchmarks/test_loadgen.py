"""The load generator against a small server that checks every frame it gets."""

import asyncio
import contextlib
import json
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

BODY_BYTES = 64
QUEUES = 3
STORED_PER_QUEUE = 10

Fields = dict[str, str]


class FakeBroker:
    """Answers like a broker and checks that requests are what a Java client sends."""

    def __init__(self) -> None:
        """Serve correctly until a test sets one of the faults."""
        self.name = "broker-a"
        self.refuse_every = 0
        self.answers_with_wrong_opaque = False
        self.skips_an_offset = False
        self.stalls_after = -1
        self.sends_readers_to = -1
        self.readers: set[str] = set()
        self.is_serving = asyncio.Event()
        self.is_serving.set()
        self.failures: list[Exception] = []
        self.codes: Counter[int] = Counter()
        self.queues: Counter[int] = Counter()
        self.keys: set[str] = set()
        self.clients: set[str] = set()
        self.bodies: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.extra_properties: Fields = {}
        self.halves: set[int] = set()
        self.subscriptions: set[tuple[str, str]] = set()
        self.arrival = asyncio.Condition()
        self.connections: set[asyncio.Task[None]] = set()

    @property
    def messages(self) -> int:
        """How many messages were accepted."""
        return sum(map(len, self.bodies))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; a failed check is kept and closes it."""
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            async with asyncio.TaskGroup() as answers:
                while prefix := await reader.read(8):
                    prefix += await reader.readexactly(8 - len(prefix))
                    total, header_length = struct.unpack(">II", prefix)
                    header = json.loads(await reader.readexactly(header_length))
                    body = await reader.readexactly(total - 4 - header_length)
                    answers.create_task(self.answer(header, body, writer))
                raise ConnectionResetError
        except* (ConnectionResetError, asyncio.IncompleteReadError):
            pass
        except* (AssertionError, ValueError, KeyError, struct.error) as group:
            self.failures += group.exceptions
        finally:
            writer.close()
            self.connections.discard(task)

    async def answer(self, header: dict[str, Any], body: bytes, out: asyncio.StreamWriter) -> None:
        """Check one request and write its answer."""
        self.codes[header["code"]] += 1
        if self.messages == self.stalls_after:
            self.stalls_after = -1
            self.is_serving.clear()
            asyncio.get_running_loop().call_later(1.2, self.is_serving.set)
        await self.is_serving.wait()
        if self.refuse_every and self.codes.total() % self.refuse_every == 0:
            code, fields, answer_body = 2, Fields(), b""
        elif self.sends_readers_to >= 0 and self.is_new_reader(header):
            code, answer_body = 21, b""
            fields = {"nextBeginOffset": str(self.sends_readers_to)}
        else:
            code, (fields, answer_body) = 0, await self.process(header, body)
        opaque = header["opaque"] + self.answers_with_wrong_opaque
        answer = {"code": code, "extFields": fields, "flag": 1, "opaque": opaque}
        data = json.dumps(answer | {"remark": "busy, try {later}"}).encode()
        out.write(struct.pack(">II", 4 + len(data) + len(answer_body), len(data)))
        out.write(data + answer_body)

    def is_new_reader(self, header: dict[str, Any]) -> bool:
        """Tell whether this is the first pull of a queue; later ones begin where they were sent."""
        fields = header["extFields"]
        if header["code"] != 11 or not int(fields["sysFlag"]) & 2:
            return False
        if is_new := fields["queueId"] not in self.readers:
            self.readers.add(fields["queueId"])
        else:
            assert int(fields["queueOffset"]) >= self.sends_readers_to
        return is_new

    async def process(self, header: dict[str, Any], body: bytes) -> tuple[Fields, bytes]:
        """Return extFields and body of the answer."""
        assert header["flag"] == 0
        assert header["language"] == "JAVA"
        fields: Fields = header["extFields"]
        assert all(isinstance(value, str) for value in fields.values())
        match header["code"]:
            case 310 | 320 as code:
                await self.take_send(fields, body, batch=code == 320)
                place = self.messages
                if "TRAN_MSG" in self.extra_properties:
                    assert fields["f"] == "4"
                    self.halves.add(place)
                answer = {"msgId": f"{place:032X}", "queueOffset": str(place + 1000)}
                return {"queueId": fields["e"]} | answer, b""
            case 37:
                place = int(fields["commitLogOffset"])
                self.halves.remove(place)
                assert int(fields["tranStateTableOffset"]) == place + 1000
                assert (fields["commitOrRollback"], fields["producerGroup"]) == (
                    "8",
                    "bench_producer",
                )
                return {}, b""
            case 30 | 31 as code:
                return {"offset": str(0 if code == 31 else STORED_PER_QUEUE)}, b""
            case 11:
                return await self.take_pull(fields)
            case 34:
                self.clients.add(json.loads(body)["clientID"])
                return {}, b""
            case code:
                raise AssertionError(f"code {code} was not expected")

    async def take_send(self, fields: Fields, body: bytes, *, batch: bool) -> None:
        """Check the fields of SEND_MESSAGE_V2 and each message of the request."""
        assert list(fields) == list("abcdefghijklmn")
        assert (fields["b"], fields["c"], fields["d"]) == ("bench", "TBW102", "4")
        assert abs(int(fields["g"]) / 1000 - time.time()) < 60
        assert fields["m"] == ("true" if batch else "false")
        assert fields["n"] == self.name
        queue = int(fields["e"])
        self.queues[queue] += 1
        if not batch:
            self.take_message(queue, fields["i"], body)
        else:
            assert fields["i"] == "WAIT\x01true"
            for properties, item_body in batch_items(body):
                self.take_message(queue, properties, item_body)
        async with self.arrival:
            self.arrival.notify_all()

    def take_message(self, queue: int, properties: str, body: bytes) -> None:
        """Check a message, whose two keys must be new."""
        values = dict(item.split("\x01") for item in properties.split("\x02"))
        assert list(values)[:4] == ["KEYS", "UNIQ_KEY", "WAIT", "TAGS"]
        assert dict(list(values.items())[4:]) == self.extra_properties
        assert len(bytes.fromhex(values["UNIQ_KEY"])) == 16
        keys = {values["UNIQ_KEY"], values["KEYS"]}
        assert len(keys) == 2
        assert not keys & self.keys
        assert len(body) == BODY_BYTES
        self.keys |= keys
        self.bodies[queue].append(body)

    async def take_pull(self, fields: Fields) -> tuple[Fields, bytes]:
        """Return stored records; a pull that may suspend waits for what is sent."""
        queue, queue_offset = int(fields["queueId"]), int(fields["queueOffset"])
        self.subscriptions.add((fields["expressionType"], fields["subscription"]))
        count = int(fields["maxMsgNums"])
        if int(fields["sysFlag"]) & 2:
            stored = [bytes(BODY_BYTES)] * STORED_PER_QUEUE
            async with self.arrival:
                await self.arrival.wait_for(
                    lambda: len(stored) + len(self.bodies[queue]) > queue_offset
                )
            bodies = (stored + self.bodies[queue])[queue_offset : queue_offset + count]
        else:
            bodies = [bytes(BODY_BYTES)] * min(count, STORED_PER_QUEUE - queue_offset)
        first = queue_offset + self.skips_an_offset
        records = [stored_record(queue, first + i, body) for i, body in enumerate(bodies)]
        return {"nextBeginOffset": str(queue_offset + len(bodies))}, b"".join(records)


def batch_items(body: bytes) -> list[tuple[str, bytes]]:
    """Split the body of code 320; every item must be as long as it says."""
    items, position = [], 0
    while position < len(body):
        total, magic, crc, flag, length = struct.unpack_from(">iiiii", body, position)
        assert (magic, crc, flag) == (0, 0, 0)
        end = position + 20 + length
        (properties_length,) = struct.unpack_from(">h", body, end)
        assert total == 22 + length + properties_length
        items.append((body[end + 2 : position + total].decode(), body[position + 20 : end]))
        position += total
    assert position == len(body)
    return items


def stored_record(queue: int, queue_offset: int, body: bytes) -> bytes:
    """Return a stored message with IPv4 hosts and no properties."""
    size, crc = 96 + len(body), zlib.crc32(body) & 0x7FFFFFFF
    head = struct.pack(">iIIiiqqi", size, 0xDAA320A7, crc, queue, 0, queue_offset, 0, 0)
    times_and_hosts = struct.pack(">q8sq8siq", 0, bytes(8), 0, bytes(8), 0, 0)
    return head + times_and_hosts + struct.pack(">i", len(body)) + body + b"\x05bench\0\0"


@contextlib.asynccontextmanager
async def fake_broker() -> AsyncIterator[tuple[FakeBroker, int]]:
    """Serve a fake broker; on the way out, no request may have failed a check."""
    broker = FakeBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    try:
        yield broker, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in broker.connections:
            task.cancel()
        await asyncio.gather(*broker.connections, return_exceptions=True)
        await server.wait_closed()
        assert broker.failures == []


@pytest.fixture(scope="module")
def program() -> str:
    """The compiled generator."""
    builder = Path(__file__).with_name("bench_generator.py")
    built = subprocess.run([sys.executable, builder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return built.stdout.strip()


async def run(program: str, mode: str, port: int, *options: object) -> tuple[int, str, str]:
    """Run the generator to its end; return exit code, output and complaints."""
    words = [mode, "--port", port, "--queues", QUEUES, "--body", BODY_BYTES, *options]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *map(str, words), stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    output, complaints = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode(), complaints.decode()


async def measure(program: str, mode: str, port: int, *options: object) -> dict[str, Any]:
    """Run the generator, which must be content, and return its report."""
    code, output, complaints = await run(program, mode, port, *options)
    assert (code, complaints) == (0, "")
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert report["unanswered"] == 0
    return report


@pytest.mark.parametrize(("mode", "messages"), [("send", 1), ("batch", 8)])
async def test_sends_what_a_java_client_sends(program: str, mode: str, messages: int) -> None:
    """Every frame is valid, keys never repeat, queues take turns, and the count is exact."""
    async with fake_broker() as (broker, port):
        options = ["--connections", 2, "--depth", 3, "--batch", 8, "--count", 240]
        report = await measure(program, mode, port, *options)
    assert report["messages"] == broker.messages == 240
    assert report["requests"] == broker.codes.total() == 240 // messages
    assert set(broker.queues.values()) == {240 // messages // QUEUES}
    assert report["errors"] == {}


async def test_measures_only_the_window_after_the_warm_up(program: str) -> None:
    """The report covers the measuring seconds, and its times are within them."""
    async with fake_broker() as (broker, port):
        options = ["--connections", 4, "--warmup", 0.3, "--seconds", 0.3]
        began_s = time.monotonic()
        report = await measure(program, "send", port, *options)
        took_s = time.monotonic() - began_s
    assert 0 < report["messages"] < broker.messages
    assert 0.3 <= report["seconds"] < took_s - 0.3
    assert report["rate"] == pytest.approx(report["messages"] / report["seconds"], rel=0.01)
    assert 0 < report["p50_us"] <= report["p99_us"] <= report["p999_us"]
    # The quantiles are lower ends of buckets, the longest time is exact.
    assert report["p999_us"] <= report["max_us"] < took_s * 1e6


async def test_counts_a_refusal_as_an_error_and_not_as_a_message(program: str) -> None:
    """Every fifth answer has code 2: it is counted by its code, the rest are the messages."""
    async with fake_broker() as (broker, port):
        broker.refuse_every = 5
        code, output, complaints = await run(program, "send", port, "--count", 100)
    report = json.loads(output)
    assert code == 0
    assert report["errors"] == {"2": 20}
    assert report["messages"] == broker.messages == 80
    assert complaints.endswith(": first answer with code 2: busy, try {later}\n")


async def test_ends_at_an_answer_that_nobody_asked_for(program: str) -> None:
    """A wrong opaque is no answer, however successful it looks."""
    async with fake_broker() as (broker, port):
        broker.answers_with_wrong_opaque = True
        code, _output, complaints = await run(program, "send", port, "--count", 100)
    assert code == 2
    assert "nobody asked for" in complaints


async def test_pull_loops_over_what_each_queue_holds(program: str) -> None:
    """Pulls of four read 4, 4 and 2 of a queue's ten messages, on and on."""
    async with fake_broker() as (broker, port):
        options = ["--connections", 2, "--pull-max", 4, "--warmup", 0, "--seconds", 0.3]
        report = await measure(program, "pull", port, *options)
    assert report["requests"] > 10
    assert report["messages"] == pytest.approx(report["requests"] * 10 / 3, abs=20)
    assert set(broker.codes) == {11, 30, 31}


async def test_pulls_with_a_condition(program: str) -> None:
    """The text goes out as it is, as an SQL92 subscription."""
    async with fake_broker() as (broker, port):
        options = ["--sql", "TAGS = 'TagA'", "--warmup", 0, "--seconds", 0.2]
        report = await measure(program, "pull", port, *options)
    assert report["messages"] > 10
    assert broker.subscriptions == {("SQL92", "TAGS = 'TagA'")}


async def test_sends_name_the_broker_that_they_are_meant_for(program: str) -> None:
    """Brokers refuse what names another one."""
    async with fake_broker() as (broker, port):
        broker.name = "broker-a-1"
        report = await measure(program, "send", port, "--broker", "broker-a-1", "--count", 3)
    assert report["messages"] == 3


async def test_delayed_messages_carry_their_level(program: str) -> None:
    """Every message has the level, and nothing else changes."""
    async with fake_broker() as (broker, port):
        broker.extra_properties = {"DELAY": "2"}
        report = await measure(program, "send", port, "--delay", 2, "--count", 30)
    assert report["messages"] == broker.messages == 30


async def test_a_transaction_is_a_half_message_and_its_commit(program: str) -> None:
    """Each half message is committed at the place that its answer named, and counts then."""
    async with fake_broker() as (broker, port):
        broker.extra_properties = {"TRAN_MSG": "true", "PGROUP": "bench_producer"}
        options = ["--connections", 2, "--depth", 3, "--count", 60]
        report = await measure(program, "transaction", port, *options)
    assert (broker.codes[310], broker.codes[37], broker.halves) == (60, 60, set())
    assert report["messages"] == report["requests"] == 60


async def test_ends_at_a_gap_between_pulled_messages(program: str) -> None:
    """A record of another queue offset than the one due is a broken broker."""
    async with fake_broker() as (broker, port):
        broker.skips_an_offset = True
        code, _output, complaints = await run(program, "pull", port, "--seconds", 1)
    assert code == 2
    assert "where queue 0 had 0 due" in complaints


async def test_timetable_keeps_its_rate_and_times_each_delivery(program: str) -> None:
    """Sends follow the clock and the long-polling consumer gets every message."""
    async with fake_broker() as (broker, port):
        options = ["--rate", 100, "--depth", 64, "--pull-max", 1]
        options += ["--warmup", 0.2, "--seconds", 3]
        began_s = time.monotonic()
        report = await measure(program, "timetable", port, *options)
        took_s = time.monotonic() - began_s
    # No message is early. What a machine that halts holds up comes after, unless it halts at the
    # end of the three seconds and for most of them.
    assert broker.messages <= 100 * took_s
    assert report["messages"] > 100 * 3 / 5
    assert report["undelivered"] == 0
    assert 0 < report["p50_us"] <= report["end_to_end_p50_us"] < took_s * 1e6
    assert report["messages"] < broker.codes[310] == broker.messages


async def test_the_tail_consumer_goes_where_it_is_sent(program: str) -> None:
    """Told that its offset is not there, it asks for the one that the answer names."""
    async with fake_broker() as (broker, port):
        broker.sends_readers_to = STORED_PER_QUEUE - 2
        options = ["--rate", 100, "--depth", 64, "--warmup", 0, "--seconds", 1]
        code, output, complaints = await run(program, "timetable", port, *options)
    report = json.loads(output)
    assert (code, report["errors"]) == (0, {"21": QUEUES}), complaints
    # More of each queue than were sent.
    assert report["undelivered"] < 0


async def test_the_timetable_does_not_rest_while_a_message_is_due(program: str) -> None:
    """What comes due while nothing is awaited is sent then, not with the next answer."""
    async with fake_broker() as (_broker, port):
        # Looking through many connections takes long enough for messages to come due meanwhile.
        options = ["--connections", 900, "--rate", 500, "--warmup", 0, "--seconds", 5]
        report = await measure(program, "timetable", port, *options)
    assert report["messages"] == pytest.approx(2500, abs=2)
    assert report["max_us"] < 1_500_000


async def test_a_stall_at_the_end_of_the_timetable_counts_in_full(program: str) -> None:
    """What was due in the window is sent and timed, though the answers come after its end."""
    async with fake_broker() as (broker, port):
        broker.stalls_after = 80
        # More are due during the stall than may be unanswered: the rest is sent after it.
        options = ["--rate", 100, "--depth", 8, "--pull-max", 1, "--warmup", 0, "--seconds", 1]
        report = await measure(program, "timetable", port, *options)
    assert report["messages"] == pytest.approx(100, abs=2)
    assert report["messages"] <= broker.messages <= 101
    assert report["undelivered"] == 0
    # The first that waits does so for all of the 1.2 s, the last one that is due for 0.2 s less.
    assert report["max_us"] >= 1_190_000
    assert report["end_to_end_max_us"] >= 1_190_000


async def test_idle_connections_send_one_heartbeat_each(program: str) -> None:
    """Each connection is a client of its own and stays until stdin ends."""
    async with fake_broker() as (broker, port):
        report = await measure(program, "idle", port, "--connections", 50)
    assert report["requests"] == 0
    assert len(broker.clients) == broker.codes[34] == 50


async def test_first_waits_for_an_accepted_send(program: str) -> None:
    """Refusals are retried; the time is that of the first accepted message."""
    before_ns = time.monotonic_ns()
    async with fake_broker() as (broker, port):
        broker.refuse_every = 1
        asyncio.get_running_loop().call_later(0.2, setattr, broker, "refuse_every", 0)
        code, output, _complaints = await run(program, "first", port, "--seconds", 20)
    assert code == 0
    accepted_after_s = (json.loads(output)["accepted_at_ns"] - before_ns) / 1e9
    assert 0.2 <= accepted_after_s < 20
    assert broker.messages == 1
