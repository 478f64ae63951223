"""What the tests that kill a real process share: the process, a plain connection, reading it all.

The directory outlives the process: start another one over it to see what is left. The connection
is a plain socket, so that nothing is sent again behind the back of a test.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from promises import promised

from mailboat.model.message import MessageExt
from mailboat.model.names import SCHEDULE_TOPIC
from mailboat.model.record import iterate_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RESPONSE_FLAG, RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder

_START_TIMEOUT_S: Final = 60
_NOTHING_THERE: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
_SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 1_048_576,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 1_000,
    "diskSpaceWarningLevelRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
}


class BrokerProcess:
    """One standalone process with small files; it starts at once."""

    def __init__(
        self, directory: Path, flush_disk_type: str, options: Mapping[str, object] | None = None
    ) -> None:
        """Start a process whose data and log are kept in a directory.

        Args:
            directory: outlives the process.
            flush_disk_type: ASYNC_FLUSH or SYNC_FLUSH.
            options: more configuration keys.
        """
        options = {**_SMALL_FILES, "flushDiskType": flush_disk_type, **(options or {})}
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
        self.namesrv = ""

    def wait_ready(self) -> Self:
        """Wait until it serves; blocks."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log_path.read_text()[-2000:]
        ready = json.loads(line)
        host, _, port = ready["broker"].rpartition(":")
        self.address = (host, int(port))
        self.namesrv = ready["namesrv"]
        return self

    def kill(self) -> int:
        """Kill it as `kill -9` does; blocks until it is gone."""
        return self.end(signal.SIGKILL)

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit code. May be called again."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait(timeout=_START_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        return code


class PlainConnection:
    """A plain socket that carries remoting commands; requests may be in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use an open socket; `open` makes one."""
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._answers: list[RemotingCommand] = []
        self._opaque = 0

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Self:
        """Connect to a broker."""
        return cls(*await asyncio.open_connection(*address))

    def send(self, command: RemotingCommand) -> int:
        """Write a command without waiting; returns its opaque."""
        self._opaque += 1
        command.opaque = self._opaque
        self._writer.write(command.encode())
        return self._opaque

    async def receive(self) -> RemotingCommand:
        """Return the next command that comes in: an answer, or a request of the broker.

        Raises:
            ConnectionResetError: the other side is gone.
        """
        while not self._answers:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionResetError
            self._answers += [decode_command(frame) for frame in self._decoder.feed(data)]
        return self._answers.pop(0)

    async def call(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request and return its answer; nothing else may be in flight.

        Requests of the broker, which come in between, are passed over.
        """
        opaque = self.send(command)
        while True:
            answer = await self.receive()
            if answer.flag & RESPONSE_FLAG:
                assert answer.opaque == opaque
                return answer

    async def respond_to_all(self) -> None:
        """Answer each request of the broker with success, until cancelled."""
        while True:
            request = await self.receive()
            if not request.flag & RESPONSE_FLAG:
                self._writer.write(request.response(ResponseCode.SUCCESS).encode())

    async def close(self) -> None:
        """Close the socket."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def send_request(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: str = "",
    *,
    queues: int = 4,
    batch: bool = False,
) -> RemotingCommand:
    """Make a send, code 310 or 320; the topic is created with so many queues."""
    fields: dict[str, str | int] = {
        "a": "producers", "b": topic, "c": "TBW102", "d": queues, "e": queue_id, "f": 0,
        "g": int(time.time() * 1000), "h": 0, "i": properties, "j": 0, "k": "false", "m": batch,
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return RemotingCommand.request(code, fields, body)


class QueueContent(NamedTuple):
    """Everything that can be read of one queue."""

    min_offset: int
    max_offset: int
    messages: list[MessageExt]


async def read_queue(connection: PlainConnection, topic: str, queue_id: int) -> QueueContent:
    """Pull all messages of one queue; of a topic that nobody was told of there are none."""
    found: list[MessageExt] = []
    place: dict[str, str | int] = {"topic": topic, "queueId": queue_id}
    bounds: list[int] = []
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
        answer = await connection.call(RemotingCommand.request(code, place))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return QueueContent(0, 0, [])
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark, topic)
        bounds.append(int(answer.ext_fields["offset"]))
    low, high = bounds
    at = low
    while at < high:
        fields = place | {
            "consumerGroup": "readers", "queueOffset": at, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        answer = await connection.call(RemotingCommand.request(RequestCode.PULL_MESSAGE, fields))
        with promised(f"{topic}/{queue_id} has all from {low} to {high}"):
            assert answer.code not in _NOTHING_THERE, (answer.code, answer.remark, at)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark, topic, at)
        found += iterate_records(answer.body)
        at = int(answer.ext_fields["nextBeginOffset"])
    return QueueContent(low, high, found)


async def has_delivered_all(connection: PlainConnection) -> bool:
    """Tell whether the broker says that no delayed message waits any more."""
    answer = await connection.call(RemotingCommand.request(RequestCode.GET_ALL_DELAY_OFFSET))
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    for level, offset in json.loads(answer.body)["offsetTable"].items():
        place: dict[str, str | int] = {"topic": SCHEDULE_TOPIC, "queueId": int(level) - 1}
        command = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, place)
        if int((await connection.call(command)).ext_fields["offset"]) > offset:
            return False
    return True
