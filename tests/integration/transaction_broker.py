"""A broker and a producer of transactions, for the tests of both.

A producer here is a plain connection that sends what RocketMQ's producers send: a half message with
TRAN_MSG and PGROUP (310), its end (37), and ends again when the broker asks (39).
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from small_store import small_store

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings
from mailboat.disk import Disk, VolumeUsage
from mailboat.disk.real import RealDisk
from mailboat.model.message import MessageExt
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.record import decode_record, decode_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
HALF, OP_HALF = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP, GROUP = "TRANS_CHECK_MAX_TIME_TOPIC", "CID_RMQ_SYS_TRANS"
PATIENCE_S = 60
"""What only a broker that hangs takes."""

FAST = {"transaction_time_out": 40, "transaction_check_interval": 40}
NO_CHECKS = {"transaction_time_out": 60_000, "transaction_check_interval": 60_000}


class Half(NamedTuple):
    """A half message as its producer knows it."""

    key: str
    message_id: str
    queue_offset: int
    physical_offset: int


class Producer:
    """One connection of a producer; it answers no question by itself."""

    def __init__(self, address: str, group: str = "pg") -> None:
        """Prepare a producer of a group; `join` makes it a member."""
        self.address, self.group = address, group
        self.questions: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        dispatcher = Dispatcher()
        dispatcher.register(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        self._remoting = RemotingClient(dispatcher)
        self._prepared = 0

    async def call(self, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, fields, body)
        return await self._remoting.request(self.address, command, PATIENCE_S)

    async def join(self) -> None:
        """Send a heartbeat: from now on the broker may ask this producer."""
        data = HeartbeatData(f"10.0.0.1@{id(self)}")
        data.producer_data_set.append(ProducerData(self.group))
        await self.call(RequestCode.HEART_BEAT, {}, encode_heartbeat(data))

    async def send(
        self, properties: dict[str, str], topic: str = "t", body: bytes = b"paid"
    ) -> RemotingCommand:
        """Send a message with these properties."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        fields = {
            "a": self.group, "b": topic, "c": "TBW102", "d": 4, "e": 1, "f": 4,
            "g": int(time.time() * 1000), "h": 0, "i": text, "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        return await self.call(RequestCode.SEND_MESSAGE_V2, fields, body)

    async def prepare(self, topic: str = "t", **properties: str) -> Half:
        """Store a half message for queue 1 of a topic."""
        self._prepared += 1
        key = f"{self.group}-{self._prepared}"
        known = {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": key, "TAGS": "TagA"}
        answer = await self.send(known | properties, topic)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext_fields["queueId"] == "1"
        assert answer.ext_fields["transactionId"] == properties.get("UNIQ_KEY", key)
        message_id = answer.ext_fields["msgId"]
        physical_offset = decode_offset_message_id(message_id).physical_offset
        return Half(key, message_id, int(answer.ext_fields["queueOffset"]), physical_offset)

    def end_fields(self, half: Half, state: int) -> dict[str, Any]:
        """Return the fields of the end of a transaction."""
        return {
            "producerGroup": self.group,
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset,
            "commitOrRollback": state,
            "fromTransactionCheck": False,
            "msgId": half.key,
            "transactionId": half.key,
        }

    async def end(self, half: Half, state: int, **changes: Any) -> RemotingCommand:
        """End a transaction, with an answer."""
        return await self.call(RequestCode.END_TRANSACTION, self.end_fields(half, state) | changes)

    async def asked(self) -> tuple[Half, MessageExt]:
        """Wait for a question; return the half message as it says, and the message in it."""
        async with asyncio.timeout(PATIENCE_S):
            command = await self.questions.get()
        assert command.is_oneway
        fields = command.ext_fields
        offsets = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
        message, _ = decode_record(command.body, verify=False)
        assert fields["transactionId"] == fields["msgId"] == message.unique_key
        return Half(fields["msgId"], fields["offsetMsgId"], *offsets), message

    async def read(self, topic: str = "t", queue_id: int = 1) -> list[MessageExt]:
        """Pull everything that one queue holds."""
        found: list[MessageExt] = []
        fields = {
            "consumerGroup": "readers", "topic": topic, "queueId": queue_id, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
            "subVersion": 0,
        }  # fmt: skip
        while True:
            answer = await self.call(RequestCode.PULL_MESSAGE, fields | {"queueOffset": len(found)})
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += decode_records(answer.body)

    async def close(self) -> None:
        """Close the connection."""
        await self._remoting.close()

    def _asked(self, _connection: Connection, command: RemotingCommand) -> None:
        self.questions.put_nowait(command)


class FillingDisk(RealDisk):
    """A disk that is full when a test says so."""

    def __init__(self) -> None:
        """Begin with room."""
        super().__init__()
        self.is_full = False

    def usage(self, path: str) -> VolumeUsage:
        """Return the state of a volume of a gigabyte."""
        size_bytes = 1 << 30
        used_bytes = size_bytes if self.is_full else 0
        return VolumeUsage(1, size_bytes, used_bytes, size_bytes - used_bytes, 1000, 900)


class SlowDisk(RealDisk):
    """A disk that syncs when a test lets it."""

    def __init__(self) -> None:
        """Begin with a fast one."""
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.is_syncing = threading.Event()

    def fdatasync(self, fd: int) -> None:
        """Sync once that is allowed."""
        self.is_syncing.set()
        assert self.may_sync.wait(PATIENCE_S)
        super().fdatasync(fd)


def _settings(root: Path, store: dict[str, Any], **broker: Any) -> Settings:
    return Settings(
        role="broker",
        broker=BrokerConfig(listen_port=0, bind_address="127.0.0.1", **broker),
        store=small_store(root, **store),
    )


@contextlib.asynccontextmanager
async def running(
    root: Path,
    *,
    flush: str = "ASYNC_FLUSH",
    disk: Disk | None = None,
    store: dict[str, Any] | None = None,
    **broker: Any,
) -> AsyncIterator[tuple[BrokerController, Producer]]:
    """Run a broker and a producer that is connected to it and no member yet."""
    store = {"flush_disk_type": flush, **(store or {})}
    if isinstance(disk, FillingDisk):
        store |= {"disk_max_used_space_ratio": 75, "disk_space_clean_forcibly_ratio": 85}
        store |= {"disk_space_warning_level_ratio": 90}
    settings = _settings(root, store, **(NO_CHECKS | broker))
    controller = BrokerController(settings, disk=disk)
    await controller.start()
    producer = Producer(controller.address)
    try:
        yield controller, producer
    finally:
        await producer.close()
        await controller.shutdown()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what the broker does by itself."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
