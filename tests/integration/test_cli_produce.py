"""`mailboat produce` when something goes wrong: what it says of the lines is what is stored."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from cli_shell import PROCESS_TIMEOUT_S, Shell, length, make_topic, send, until

from mailboat.cli import consume, main, produce
from mailboat.cli.message import send as message_send
from mailboat.client import Admin, MessageExt
from mailboat.model.batch import decode_batch
from mailboat.model.properties import decode_properties
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.route import BrokerData, QueueData, TopicRouteData, encode_topic_route
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.server import RemotingServer
from mailboat.testing.cluster import Cluster

Capture = pytest.CaptureFixture[bytes]
Script = Callable[[int, list[bytes]], Awaitable[int | None]]
"""Gets the number of a send and the bodies of it; returns a response code or None for no answer."""

OK = ResponseCode.SUCCESS


class ScriptedBroker:
    """A name server and a broker in one whose answers to sends a test writes."""

    def __init__(self, script: Script, capture: Capture) -> None:
        """Answer sends by `script`."""
        self._script = script
        self._capture = capture
        self.stored: list[bytes] = []
        self.keys: dict[bytes, list[str]] = {}
        self._sends = 0
        dispatcher = Dispatcher()
        dispatcher.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        dispatcher.register(RequestCode.HEART_BEAT, lambda _, command: command.response(0))
        dispatcher.register(RequestCode.UNREGISTER_CLIENT, lambda _, command: command.response(0))
        dispatcher.register(RequestCode.SEND_MESSAGE_V2, self._send)
        dispatcher.register(RequestCode.SEND_BATCH_MESSAGE, self._send)
        self._server = RemotingServer(dispatcher, name="scripted")
        self.error = ""

    async def start(self) -> None:
        """Listen on a free port."""
        await self._server.start("127.0.0.1", 0)

    async def close(self) -> None:
        """Stop listening."""
        await self._server.close(drain_s=0.1)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._server.port}"

    async def run(self, *words: str, code: int) -> str:
        """Run one command against this broker, which must end with `code`; return its errors."""
        found = await asyncio.to_thread(main, [*words, "-n", self.address])
        error = self._capture.readouterr().err.decode()
        assert found == code, error
        return error

    def _route(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        route = TopicRouteData([QueueData("a", 1, 1, 6)], [BrokerData("C", "a", {0: self.address})])
        return command.response(0, body=encode_topic_route(route))

    async def _send(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | None:
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            items = [(body, text.decode()) for _, body, text in decode_batch(command.body)]
        else:
            items = [(command.body, command.ext_fields["i"])]
        for body, text in items:
            key = decode_properties(text)["UNIQ_KEY"]
            self.keys.setdefault(body, []).append(key)
        self._sends += 1
        bodies = [body for body, _ in items]
        code = await self._script(self._sends, bodies)
        if code is None:
            connection.abort()
            return None
        if code == OK:
            self.stored += bodies
        fields = {"msgId": "0" * 32, "queueId": 0, "queueOffset": 0}
        return command.response(code, "no" if code != OK else None, ext_fields=fields)


Make = Callable[[Script], Awaitable[ScriptedBroker]]


@pytest.fixture
async def make(capsysbinary: Capture) -> AsyncIterator[Make]:
    """Return a function that starts a scripted broker."""
    brokers: list[ScriptedBroker] = []

    async def make_broker(script: Script) -> ScriptedBroker:
        broker = ScriptedBroker(script, capsysbinary)
        brokers.append(broker)
        await broker.start()
        return broker

    yield make_broker
    for broker in brokers:
        await broker.close()


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of ten lines `0` to `9`, which travel two by two."""
    monkeypatch.setattr(produce, "BATCH_MESSAGES", 2)
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(10)))
    return path


@pytest.mark.parametrize(
    ("options", "bad", "reason"),
    [
        ([], b"x" * 5_000_000, "line 8001: it is too large: it does not end within 4194304 bytes"),
        (["--json"], b'{"body":', "line 8001: not a message in JSON"),
    ],
)
async def test_bad_line_ends_after_those_before_it(
    tmp_path: Path, capsysbinary: Capture, options: list[str], bad: bytes, reason: str
):
    """Every line before the bad one is stored and none behind it, and that is what it says."""
    path = tmp_path / "lines"
    good = [b'{"body":"%d"}' % i if options else b"%d" % i for i in range(8000)]
    await asyncio.to_thread(path.write_bytes, b"\n".join([*good, bad, *good]))
    async with Cluster(tmp_path / "cluster") as cluster:
        shell = Shell(cluster, capsysbinary)
        await shell.run("produce", "T", "-f", str(path), *options, code=1)
        counted, said = shell.error.splitlines()
        assert counted.startswith("sent 8000 messages")
        assert said.startswith(f"mailboat: {reason}")
        assert said.endswith("; lines 1 to 8000 are stored, line 8001 is the first that is not")
        assert await length(cluster, "T") == 8000


async def test_file_without_lines_is_refused_early(tmp_path: Path, capsysbinary: Capture):
    """A file that is no text is refused, not read whole into memory."""
    path = tmp_path / "lines"
    await asyncio.to_thread(path.write_bytes, b"one\n" + b"x" * 50_000_000)
    async with Cluster(tmp_path / "cluster") as cluster:
        shell = Shell(cluster, capsysbinary)
        await shell.run("produce", "T", "-f", str(path), code=1)
        assert "line 2: it is too large" in shell.error
        assert shell.error.endswith("; line 1 is stored, line 2 is the first that is not\n")
        assert await length(cluster, "T") == 1


async def test_refused_batch_ends_it_and_the_others_are_waited_for(make: Make, lines: Path):
    """What is under way is answered before it ends, and what is stored behind is named."""
    refused = asyncio.Event()

    async def script(number: int, bodies: list[bytes]) -> int:
        if bodies == [b"2", b"3"]:
            refused.set()
            return ResponseCode.MESSAGE_ILLEGAL
        await refused.wait()
        await asyncio.sleep(0.1)
        return OK

    broker = await make(script)
    error = await broker.run("produce", "T", "-f", str(lines), code=5)
    assert error.startswith(f"sent {len(broker.stored)} messages")
    assert "lines 3 to 4: refused with MESSAGE_ILLEGAL (13): no; " in error
    behind = len(broker.stored) - 2
    assert behind > 0
    named = f"lines 5 to {4 + behind}"
    assert error.endswith(
        f"; lines 1 to 2 are stored, line 3 is the first that is not; {named} behind it are stored "
        "too\n"
    )


async def test_refusal_with_nothing_behind_it_is_exact(make: Make, lines: Path):
    """Exit code 1: sending from the line that is named stores nothing twice."""

    async def script(number: int, bodies: list[bytes]) -> int:
        return OK if bodies[0] < b"4" else ResponseCode.MESSAGE_ILLEGAL

    broker = await make(script)
    error = await broker.run("produce", "T", "-f", str(lines), code=1)
    assert error.endswith("; lines 1 to 4 are stored, line 5 is the first that is not\n")
    assert sorted(broker.stored) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT]
)
async def test_doubtful_answers_are_counted_apart(make: Make, lines: Path, code: int):
    """They end nothing; they are told at once, not counted as sent, and make the exit code 5."""

    async def script(number: int, bodies: list[bytes]) -> int:
        return code if bodies == [b"4", b"5"] else OK

    broker = await make(script)
    error = await broker.run("produce", "T", "-f", str(lines), code=5)
    name = {10: "FLUSH_DISK_TIMEOUT", 12: "FLUSH_SLAVE_TIMEOUT"}[code]
    assert f"mailboat: lines 5 to 6: answered {name}\n" in error
    assert "\nsent 8 messages" in error
    assert error.endswith(
        "; lines 7 to 10 behind it are stored too; lines 5 to 6 may or may not be stored\n"
    )


async def test_line_whose_answer_was_lost_is_sent_again_with_its_id(
    make: Make, lines: Path, monkeypatch: pytest.MonkeyPatch
):
    """Copies can be told by their UNIQ_KEY, and how many there may be is said."""
    monkeypatch.setattr(produce, "RETRY_PAUSE_S", 0.01)

    async def script(number: int, bodies: list[bytes]) -> int | None:
        return None if number <= 6 else OK

    broker = await make(script)
    error = await broker.run("produce", "T", "-f", str(lines), code=0)
    assert error.startswith("sent 10 messages")
    assert re.search(r"\((\d+) sent again with the same id after a lost answer", error)
    assert len(broker.keys) == 10
    assert any(len(keys) > 1 for keys in broker.keys.values())
    assert all(len(set(keys)) == 1 for keys in broker.keys.values())


async def test_busy_broker_is_waited_for(make: Make, lines: Path, monkeypatch: pytest.MonkeyPatch):
    """A refusal because of a full disk, say, passes; nothing of it is stored."""
    monkeypatch.setattr(produce, "RETRY_PAUSE_S", 0.01)

    async def script(number: int, bodies: list[bytes]) -> int:
        return ResponseCode.SERVICE_NOT_AVAILABLE if number <= 20 else OK

    broker = await make(script)
    error = await broker.run("produce", "T", "-f", str(lines), code=0)
    assert error.startswith("sent 10 messages")
    assert "sent again" not in error
    assert sorted(broker.stored) == [b"%d" % number for number in range(10)]


async def test_broker_that_never_answers_leaves_doubt(
    make: Make, lines: Path, monkeypatch: pytest.MonkeyPatch
):
    """After the patience it ends, and says that lines may be stored."""
    monkeypatch.setattr(produce, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(produce, "PATIENCE_S", 0.1)

    async def script(number: int, bodies: list[bytes]) -> int | None:
        return OK if bodies[0] == b"0" else None

    broker = await make(script)
    error = await broker.run("produce", "T", "-f", str(lines), code=5)
    assert "; lines 1 to 2 are stored, line 3 is the first that may or may not be" in error


async def test_one_message_may_be_in_doubt_too(make: Make, monkeypatch: pytest.MonkeyPatch):
    """`message send` tells a lost answer and a late flush from a refusal."""
    monkeypatch.setattr(message_send, "SEND_TIMEOUT_S", 0.5)
    codes: list[int | None] = [None] * 3 + [ResponseCode.FLUSH_DISK_TIMEOUT, 13, 0]

    async def script(number: int, bodies: list[bytes]) -> int | None:
        return codes[number - 1]

    broker = await make(script)
    words = ("message", "send", "T", "x")
    error = await broker.run(*words, code=5)
    assert error.endswith("; the message may or may not be stored\n")
    assert await broker.run(*words, code=5) == ""
    assert "refused" in await broker.run(*words, code=1)
    assert await broker.run(*words, code=0) == ""


# As processes: signals, pipes and what is closed.


@pytest.fixture
async def shell(tmp_path: Path, capsysbinary: Capture) -> AsyncIterator[tuple[Cluster, Shell]]:
    """Return a cluster with topic T and commands against it."""
    async with Cluster(tmp_path / "cluster") as cluster:
        await make_topic(cluster, "T")
        async with contextlib.aclosing(Shell(cluster, capsysbinary)) as shell:
            yield cluster, shell


@pytest.mark.parametrize(
    "words", [("produce", "T"), ("message", "send", "T", "-"), ("topic", "delete", "T")]
)
async def test_closed_standard_input_is_wrong_usage(shell, words: tuple[str, ...]):
    """`<&-` is one sentence."""
    command = 'exec "$@" <&-'
    process = await shell[1].spawn("sh", "-c", command, "sh", *shell[1].command(*words))
    out, err = await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"mailboat ")
    assert err.count(b"\n") == 1


async def test_closed_standard_output_of_consume_is_wrong_usage(shell):
    """Messages that nobody can see are not consumed."""
    cluster, runner = shell
    await send(cluster, "T", range(3))
    words = runner.command("consume", "T", "--group", "C")
    process = await runner.spawn("sh", "-c", 'exec "$@" >&-', "sh", *words)
    _, err = await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
    assert process.returncode == 2
    assert b"standard output is closed" in err


async def test_first_interrupt_is_seen_while_a_named_pipe_has_no_writer(shell, tmp_path: Path):
    """Opening the pipe does not keep the command from hearing Ctrl-C."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    process = await shell[1].start("produce", "T", "-f", str(path))
    await until(lambda: _has_open(process.pid, path))
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
    assert process.returncode == 130
    assert err.endswith(b"mailboat: interrupted; none is stored, line 1 is the first that is not\n")


async def _has_open(pid: int, path: Path) -> bool:
    """Tell whether a process has a file open and its loop runs."""
    targets = []
    for each in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # It may be closed meanwhile.
            targets.append(os.readlink(f"/proc/{pid}/fd/{each}"))
    return str(path) in targets and any("eventpoll" in target for target in targets)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interrupt_in_the_middle_says_what_is_stored(shell, number: int, code: int):
    """What was read is sent and answered before the end, and the count is the truth."""
    cluster, runner = shell
    process = await runner.start("produce", "T")
    assert process.stdin is not None
    process.stdin.write(b"".join(b"%d\n" % i for i in range(3000)) + b"unfinished")
    await process.stdin.drain()

    async def is_stored() -> bool:
        return await length(cluster, "T") == 3000

    await until(is_stored)
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
    assert process.returncode == code, err
    counted, said = err.decode().splitlines()
    assert counted.startswith("sent 3000 messages")
    expected = "lines 1 to 3000 are stored, line 3001 is the first that is not"
    assert said == f"mailboat: interrupted; {expected}"
    assert await length(cluster, "T") == 3000


async def test_consume_commits_at_sigterm(shell):
    """What was printed does not come again because of how the command was ended."""
    cluster, runner = shell
    await send(cluster, "T", range(3))
    process = await runner.start("consume", "T", "--group", "C")
    assert process.stdout is not None
    async with asyncio.timeout(PROCESS_TIMEOUT_S):
        found = [await process.stdout.readline() for _ in range(3)]
    assert found == [b"0\n", b"1\n", b"2\n"]
    process.terminate()
    await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
    assert process.returncode == 143
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        (queue,) = await admin.offsets.queues("T")
        assert await admin.offsets.committed("C", queue) == 3


async def test_consume_outlives_a_commit_that_fails_and_says_what_comes_again(
    shell, monkeypatch: pytest.MonkeyPatch
):
    """A broker that goes away costs the commits in between; at the end it is told."""
    cluster, runner = shell
    await send(cluster, "T", range(3))
    printed: list[MessageExt] = []
    write = consume._Printer.write

    def spy(printer: consume._Printer, messages: list[MessageExt]) -> int:
        printed.extend(messages)
        return write(printer, messages)

    monkeypatch.setattr(consume._Printer, "write", spy)
    monkeypatch.setattr(consume, "COMMIT_INTERVAL_S", 0.0)
    consuming = asyncio.ensure_future(
        runner.run("consume", "T", "--group", "C", "--timeout", "3", code=1)
    )

    async def is_committed() -> bool:
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            (queue,) = await admin.offsets.queues("T")
            return await admin.offsets.committed("C", queue) == 3

    await until(is_committed)
    monkeypatch.setattr(consume, "COMMIT_INTERVAL_S", 3600.0)
    await send(cluster, "T", range(3, 5))

    async def is_printed() -> bool:
        return len(printed) == 5

    await until(is_printed)
    await cluster.stop_broker()
    monkeypatch.setattr(consume, "COMMIT_INTERVAL_S", 0.0)
    assert (await consuming).split() == ["0", "1", "2", "3", "4"]
    assert "up to 2 printed messages are not committed and come again" in runner.error
