"""The real process is killed in the middle of its work, again and again.

Producers talk to it over plain sockets, many requests in flight on each, single messages and
batches. After each restart everything is pulled: what was acknowledged is there exactly once, where
the answer said and unchanged; queue offsets have no gap.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Final, Self

import pytest

from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.record import iterate_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.testing.history import Crash, Found, History, QueueKey, QueueView, Sent

_TOPIC: Final = "killed"
_PRODUCERS: Final = 4
_DEPTH: Final = 8
_START_TIMEOUT_S: Final = 60
_SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 1_048_576,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 1_000,
    "diskSpaceWarningLevelRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
}


class _Broker:
    """One process; its directory outlives it."""

    def __init__(self, directory: Path, flush_disk_type: str) -> None:
        options = {**_SMALL_FILES, "flushDiskType": flush_disk_type}
        self._log_path = directory / "log"
        self._log = self._log_path.open("ab")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "mailboat.cli", "standalone", "--ready-json", "--no-http",
                "--data-dir", str(directory / "data"),
                "--namesrv-port", "0", "--broker-port", "0",
                *[f"-o{key}={value}" for key, value in options.items()],
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )  # fmt: skip
        self.address = ("", 0)

    def wait_ready(self) -> Self:
        """Wait until it serves."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log_path.read_text()[-2000:]
        host, _, port = json.loads(line)["broker"].rpartition(":")
        self.address = (host, int(port))
        return self

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait(timeout=_START_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        return code


class _Connection:
    """A plain socket that carries remoting commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._answers: list[RemotingCommand] = []
        self._opaque = 0

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Self:
        return cls(*await asyncio.open_connection(*address))

    def send(self, command: RemotingCommand) -> int:
        self._opaque += 1
        command.opaque = self._opaque
        self._writer.write(command.encode())
        return self._opaque

    async def receive(self) -> RemotingCommand:
        while not self._answers:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionResetError
            self._answers += [decode_command(frame) for frame in self._decoder.feed(data)]
        return self._answers.pop(0)

    async def call(self, command: RemotingCommand) -> RemotingCommand:
        self.send(command)
        return await self.receive()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _send_request(queue_id: int, body: bytes, properties: str, *, batch: bool) -> RemotingCommand:
    fields: dict[str, str | int] = {
        "a": "producers", "b": _TOPIC, "c": "TBW102", "d": _PRODUCERS, "e": queue_id, "f": 0,
        "g": int(time.time() * 1000), "h": 0, "i": properties, "j": 0, "k": "false", "m": batch,
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return RemotingCommand.request(code, fields, body)


async def _produce(address: tuple[str, int], history: History, queue_id: int) -> None:
    """Send to one queue until the broker is gone, noting every answer."""
    connection = await _Connection.open(address)
    in_flight: dict[int, list[Sent]] = {}
    is_batch = queue_id == 0
    random = Random(queue_id)
    try:
        while True:
            while len(in_flight) < _DEPTH:
                sent = [_next(history, queue_id, random) for _ in range(5 if is_batch else 1)]
                if is_batch:
                    keys = [f"U{one.number}" for one in sent]
                    body = encode_batch([Message(_TOPIC, one.body) for one in sent], keys)
                    request = _send_request(queue_id, body, "", batch=True)
                else:
                    text = f"UNIQ_KEY\x01U{sent[0].number}\x02"
                    request = _send_request(queue_id, sent[0].body, text, batch=False)
                in_flight[connection.send(request)] = sent
            answer = await connection.receive()
            _note(history, in_flight.pop(answer.opaque), answer)
    except OSError:
        return
    finally:
        await connection.close()


def _next(history: History, queue_id: int, random: Random) -> Sent:
    body = b"%d %d " % (queue_id, len(history.sent)) + random.randbytes(random.randrange(600))
    return history.send(_TOPIC, queue_id, body)


def _note(history: History, sent: list[Sent], answer: RemotingCommand) -> None:
    if answer.code == ResponseCode.SUCCESS:
        first = int(answer.ext_fields["queueOffset"])
        ids = answer.ext_fields["msgId"].split(",")
        for place, (one, text) in enumerate(zip(sent, ids, strict=True)):
            offset = decode_offset_message_id(text).physical_offset
            history.acknowledge(one, first + place, offset)
    elif answer.code != ResponseCode.FLUSH_DISK_TIMEOUT:
        for one in sent:
            history.refuse(one)


async def _read_all(address: tuple[str, int]) -> dict[QueueKey, QueueView]:
    connection = await _Connection.open(address)
    try:
        return {
            (_TOPIC, queue_id): await _read_queue(connection, queue_id)
            for queue_id in range(_PRODUCERS)
        }
    finally:
        await connection.close()


async def _read_queue(connection: _Connection, queue_id: int) -> QueueView:
    found: list[Found] = []
    place: dict[str, str | int] = {"topic": _TOPIC, "queueId": queue_id}
    low, high = [
        int((await connection.call(RemotingCommand.request(code, place))).ext_fields["offset"])
        for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    ]
    at = low
    while at < high:
        fields = place | {
            "consumerGroup": "readers", "queueOffset": at, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        answer = await connection.call(RemotingCommand.request(RequestCode.PULL_MESSAGE, fields))
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark, queue_id, at)
        found += [
            Found(message.queue_offset, message.physical_offset, message.body)
            for message in iterate_records(answer.body)
        ]
        at = int(answer.ext_fields["nextBeginOffset"])
    return QueueView(low, high, found)


async def _cycle(broker: _Broker, history: History, random: Random) -> None:
    """Check what is there, then load the broker and kill it."""
    if history.sent:
        history.adopt(await _read_all(broker.address), Crash.NONE)
    producers = [
        asyncio.create_task(_produce(broker.address, history, queue_id))
        for queue_id in range(_PRODUCERS)
    ]
    # What is being tested is a kill at any moment of the work.
    await asyncio.sleep(random.uniform(0.02, 0.25))
    await asyncio.to_thread(broker.end, signal.SIGKILL)
    await asyncio.gather(*producers)


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("flush_disk_type", "cycles"), [("ASYNC_FLUSH", 13), ("SYNC_FLUSH", 12)])
async def test_kills_lose_double_and_change_nothing(
    tmp_path: Path, flush_disk_type: str, cycles: int
) -> None:
    """SEND_OK survives kill -9: there once, at its offset, unchanged, without gaps."""
    history = History()
    random = Random(cycles)
    brokers: list[_Broker] = []

    def start() -> _Broker:
        brokers.append(_Broker(tmp_path, flush_disk_type))
        return brokers[-1].wait_ready()

    try:
        for cycle in range(cycles):
            if cycle % 4 == 3:
                # The start after a kill is killed as well.
                brokers.append(_Broker(tmp_path, flush_disk_type))
                await asyncio.sleep(random.uniform(0.1, 0.5))
                await asyncio.to_thread(brokers[-1].end, signal.SIGKILL)
            await _cycle(await asyncio.to_thread(start), history, random)
        for _ in range(2):
            broker = await asyncio.to_thread(start)
            history.adopt(await _read_all(broker.address), Crash.NONE)
            assert await asyncio.to_thread(broker.end, signal.SIGTERM) == 0
    finally:
        for broker in brokers:
            broker.end(signal.SIGKILL)
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "damaged physical_offset" not in log
    stored = sum(1 for sent in history.sent if sent.is_seen)
    assert stored > 100 * cycles
