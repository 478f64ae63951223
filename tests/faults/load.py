"""Clients of a group on which things happen: they send, read and commit, wherever somebody leads.

A client gives up a connection without an answer; what it had asked is unknown then. What a client
was told is noted at once, and some of it fails at once (`mailboat.testing.history`).
"""

import asyncio
import contextlib
import copy
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import Final

from background import Background
from kill_process import (
    PlainConnection,
    QueueContent,
    has_delivered_all,
    read_queue,
    send_request,
)
from networked_group import REPLICAS, NetworkedGroup
from promises import promised
from transaction_load import TransactionProducer

from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.record import iterate_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.testing.history import Found, History, QueueKey, QueueView, Sent
from mailboat.testing.replica_history import Commits, DelayedMessages, Transactions

TOPIC: Final = "orders"
LOOSE_TOPIC: Final = "loose"
"""Its messages do not wait for replicas (WAIT=false)."""

LATER_TOPIC: Final = "later"
PAID_TOPIC: Final = "paid"
"""Its messages are sent in transactions."""

QUEUES: Final = 4
_BATCH_QUEUE: Final = 3
_BATCH: Final = 3
_DEPTH: Final = 4
# Longer than a broker waits for its replicas.
_ANSWER_S: Final = 4.5
_PAUSE_S: Final = 0.02
_DELAY_S: Final = 1.0
# Of the wall clock's milliseconds, and of when the message was sent.
_EARLY_S: Final = 0.005
# After so long offsets are saved, and at all replicas, on a slow machine too.
_SAVED_SURELY_S: Final = 10.0
_READER: Final = "readers"
# The outcome is unknown: the message may be stored.
_UNKNOWN: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class Load(Background):
    """Producers and consumers; a violation ends them, and `check_running` raises it."""

    def __init__(self, group: NetworkedGroup, history: History, random: Random) -> None:
        """Note in `history` what is sent, answered and read."""
        super().__init__()
        self._group = group
        self._random = random
        self.history = history
        self.commits = Commits()
        self.delayed = DelayedMessages()
        self.transactions = Transactions()
        self.leaders: list[int] = []
        """Who says that it leads; whoever watches the group keeps it up to date."""

        self.acknowledged = self.refused = self.unknown = 0
        self.loose_acknowledged: list[Sent] = []
        self._numbers, self._sessions = count(), count(1)
        self._is_wanted = asyncio.Event()
        self._busy = 0
        self._seen: dict[QueueKey, int] = {}

    # -- life cycle -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin all clients; producers wait for `go_on`."""
        works: list[Awaitable[None]] = [self._produce(TOPIC, number) for number in range(QUEUES)]
        works += [self._produce(LOOSE_TOPIC, 0), self._send_delayed(), self._commit()]
        works += [self._use_transactions()]
        works += [self._consume(ordinal) for ordinal in range(REPLICAS)]
        self.begin(*works)

    def go_on(self) -> None:
        """Let producers send."""
        self._is_wanted.set()

    async def pause(self) -> None:
        """Let producers send nothing more, and wait until nothing is in flight."""
        self._is_wanted.clear()
        while self._busy:
            self.check_running()
            await asyncio.sleep(0.02)

    async def _on_connections(self, work: Callable[[PlainConnection], Awaitable[None]]) -> None:
        """Do something on a connection to whoever says that it leads, again and again."""
        while True:
            await self._is_wanted.wait()
            if not self.leaders:
                await asyncio.sleep(_PAUSE_S)
                continue
            self._busy += 1
            try:
                await self._on_connection(self._random.choice(self.leaders), work)
            finally:
                self._busy -= 1
            await asyncio.sleep(_PAUSE_S)

    async def _on_connection(
        self, ordinal: int, work: Callable[[PlainConnection], Awaitable[None]]
    ) -> None:
        try:
            connection = await self._group.connect(ordinal)
        except OSError:
            return
        try:
            await work(connection)
        except OSError:
            return
        finally:
            await connection.close()

    # -- messages -------------------------------------------------------------------------------

    async def _produce(self, topic: str, queue_id: int) -> None:
        async def work(connection: PlainConnection) -> None:
            await self._send(connection, topic, queue_id, next(self._sessions))

        await self._on_connections(work)

    async def _send(
        self, connection: PlainConnection, topic: str, queue_id: int, session: int
    ) -> None:
        in_flight: dict[int, list[Sent]] = {}
        try:
            while self._is_wanted.is_set() or in_flight:
                while self._is_wanted.is_set() and len(in_flight) < _DEPTH:
                    opaque, sent = self._send_next(connection, topic, queue_id, session)
                    in_flight[opaque] = sent
                async with asyncio.timeout(_ANSWER_S):
                    answer = await connection.receive()
                if not answer.flag & 1:
                    continue
                self._answered(topic, in_flight.pop(answer.opaque), answer)
                if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                    return  # It leads no more.
                if self._random.random() < 0.5:
                    await asyncio.sleep(_PAUSE_S * self._random.randrange(4))
        finally:
            self.unknown += sum(map(len, in_flight.values()))

    def _send_next(
        self, connection: PlainConnection, topic: str, queue_id: int, session: int
    ) -> tuple[int, list[Sent]]:
        is_batch = topic == TOPIC and queue_id == _BATCH_QUEUE
        sent = []
        for _ in range(_BATCH if is_batch else 1):
            body = b"%s %d %d " % (topic.encode(), queue_id, next(self._numbers))
            body += self._random.randbytes(self._random.randrange(600))
            sent.append(self.history.send(topic, queue_id, body, session))
        body, queues = sent[0].body, QUEUES if topic == TOPIC else 1
        if is_batch:
            keys = [f"B{message.number}" for message in sent]
            body = encode_batch([Message(topic, message.body) for message in sent], keys)
        properties = "WAIT\x01false\x02" if topic == LOOSE_TOPIC else ""
        request = send_request(topic, queue_id, body, properties, queues=queues, batch=is_batch)
        return connection.send(request), sent

    @promised("what is acknowledged has its own place")
    def _answered(self, topic: str, sent: list[Sent], answer: RemotingCommand) -> None:
        if answer.code == ResponseCode.SUCCESS and topic == LOOSE_TOPIC:
            self.loose_acknowledged += sent  # It may yet be lost.
        elif answer.code == ResponseCode.SUCCESS:
            queue_offset = int(answer.ext_fields["queueOffset"])
            for text, message in zip(answer.ext_fields["msgId"].split(","), sent, strict=True):
                place = decode_offset_message_id(text).physical_offset
                self.history.acknowledge(message, queue_offset, place)
                queue_offset += 1
            self.acknowledged += len(sent)
        elif answer.code in _UNKNOWN:
            self.unknown += len(sent)
        else:
            for message in sent:
                self.history.refuse(message)
            self.refused += len(sent)

    async def _send_delayed(self) -> None:
        async def work(connection: PlainConnection) -> None:
            while self._is_wanted.is_set():
                body = b"later %d" % next(self._numbers)
                self.delayed.send(body, time.monotonic() + _DELAY_S - _EARLY_S)
                request = send_request(LATER_TOPIC, 0, body, "DELAY\x011\x02", queues=1)
                async with asyncio.timeout(_ANSWER_S):
                    answer = await connection.call(request)
                if answer.code == ResponseCode.SUCCESS:
                    self.delayed.acknowledge(body)
                elif answer.code not in _UNKNOWN:
                    self.delayed.refuse(body)
                    return
                await asyncio.sleep(0.2)

        await self._on_connections(work)

    async def _use_transactions(self) -> None:
        producer = TransactionProducer(PAID_TOPIC, self.transactions, self._random)

        async def work(connection: PlainConnection) -> None:
            await producer.work(connection, self._is_wanted.is_set)

        await self._on_connections(work)

    # -- reading --------------------------------------------------------------------------------

    async def _consume(self, ordinal: int) -> None:
        """Read everything at one replica, and now and then again what was read before."""
        keys = [(TOPIC, queue_id) for queue_id in range(QUEUES)]
        keys += [(LOOSE_TOPIC, 0), (LATER_TOPIC, 0)]
        positions = dict.fromkeys(keys, 0)

        async def work(connection: PlainConnection) -> None:
            while True:
                for key in keys:
                    async with asyncio.timeout(_ANSWER_S):
                        positions[key] = await self._read(connection, key, positions[key])
                if self._random.random() < 0.05:
                    key = self._random.choice(keys)
                    positions[key] = self._random.randint(positions[key] * 3 // 4, positions[key])
                await asyncio.sleep(0.05)

        while True:
            if self._group.is_running(ordinal) and ordinal not in self._group.halted:
                await self._on_connection(ordinal, work)
            await asyncio.sleep(0.2)

    async def _read(self, connection: PlainConnection, key: QueueKey, at: int) -> int:
        """Pull once; returns where to go on."""
        answer = await connection.call(_pull(key, at))
        if answer.code != ResponseCode.SUCCESS:
            return at
        messages = list(iterate_records(answer.body))
        if key[0] == LATER_TOPIC:
            for message in messages:
                with promised("no delayed message is early"):
                    self.delayed.see(message.body, time.monotonic())
        else:
            found = [Found(one.queue_offset, one.physical_offset, one.body) for one in messages]
            with promised("what was seen stays, unchanged"):
                self.history.see(key, found)
        after = int(answer.ext_fields["nextBeginOffset"])
        self._seen[key] = max(self._seen.get(key, 0), after)
        return after

    async def _commit(self) -> None:
        """Commit what was read, at whoever leads."""

        async def work(connection: PlainConnection) -> None:
            while self._is_wanted.is_set():
                for key, offset in list(self._seen.items()):
                    fields: dict[str, str | int] = {
                        "consumerGroup": _READER, "topic": key[0], "queueId": key[1],
                        "commitOffset": offset,
                    }  # fmt: skip
                    request = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
                    async with asyncio.timeout(_ANSWER_S):
                        answer = await connection.call(request)
                    if answer.code == ResponseCode.SUCCESS and key[0] != LOOSE_TOPIC:
                        self.commits.answer(key, offset, time.monotonic())
                await asyncio.sleep(0.1)

        await self._on_connections(work)

    # -- everything, once the group is whole ----------------------------------------------------

    async def views(self, ordinal: int) -> dict[QueueKey, QueueView]:
        """Read all messages of the history at one replica."""
        connection = await self._group.connect(ordinal)
        views: dict[QueueKey, QueueView] = {}
        try:
            for topic, queue_id in [
                *((TOPIC, number) for number in range(QUEUES)),
                (LOOSE_TOPIC, 0),
            ]:
                content = await read_queue(connection, topic, queue_id)
                found = [
                    Found(message.queue_offset, message.physical_offset, message.body)
                    for message in content.messages
                ]
                views[topic, queue_id] = QueueView(content.min_offset, content.max_offset, found)
        finally:
            await connection.close()
        return views

    async def check_commits(self, ordinal: int, before_s: float) -> None:
        """Check the offsets that a leader serves against those answered before a time."""
        offsets: dict[QueueKey, int] = {}
        ends: dict[QueueKey, int] = {}
        connection = await self._group.connect(ordinal)
        try:
            for key in self._seen:
                fields: dict[str, str | int] = {
                    "consumerGroup": _READER, "topic": key[0], "queueId": key[1]
                }  # fmt: skip
                query = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
                answer = await connection.call(query)
                if answer.code == ResponseCode.SUCCESS:
                    offsets[key] = int(answer.ext_fields["offset"])
                answer = await connection.call(
                    RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields)
                )
                if answer.code == ResponseCode.SUCCESS:
                    ends[key] = int(answer.ext_fields["offset"])
        finally:
            await connection.close()
        now_s = time.monotonic()
        with promised("committed offsets are kept"):
            copy.deepcopy(self.commits).check(offsets, ends, before_s - _SAVED_SURELY_S, now_s)
        self.commits.check(offsets, ends, before_s, now_s)

    async def check_delayed(self, ordinal: int, within_s: float) -> int:
        """Wait until all delayed messages are delivered, and check them; returns the doubles."""

        async def deliver(connection: PlainConnection) -> Counter[bytes] | None:
            content = await read_queue(connection, LATER_TOPIC, 0)
            found = Counter(message.body for message in content.messages)
            return None if self.delayed.missing(found) else found

        found = await self._until(ordinal, deliver, within_s)
        if found is None:
            connection = await self._group.connect(ordinal)
            try:
                are_all = await has_delivered_all(connection)
                await asyncio.sleep(1)  # For the replicas to have it.
                content = await read_queue(connection, LATER_TOPIC, 0)
            finally:
                await connection.close()
            found = Counter(message.body for message in content.messages)
            # While some wait still, the machine may have been too slow.
            with promised("acknowledged messages come") if are_all else contextlib.nullcontext():
                return self.delayed.check(found)
        return self.delayed.check(found)

    async def check_transactions(self, ordinal: int, within_s: float) -> None:
        """Answer questions until all transactions have ended, and check them."""

        async def deliver(connection: PlainConnection) -> Counter[str] | None:
            contents = [
                await read_queue(connection, PAID_TOPIC, number) for number in range(QUEUES)
            ]
            found = _keys(contents)
            return None if self.transactions.missing(found) else found

        producer = TransactionProducer(PAID_TOPIC, self.transactions, self._random)
        connection = await self._group.connect(ordinal)
        answering = asyncio.create_task(producer.answer(connection))
        try:
            found = await self._until(ordinal, deliver, within_s)
            # Where some are lacking after all this time, the machine may have been too slow.
            if found is None:
                self.transactions.check(Counter())
            else:
                with promised("each commit is there once, and no rollback"):
                    self.transactions.check(found)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await connection.close()

    async def _until(
        self,
        ordinal: int,
        look: Callable[[PlainConnection], Awaitable[Counter | None]],
        within_s: float,
    ) -> Counter | None:
        connection = await self._group.connect(ordinal)
        found: Counter | None = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while (found := await look(connection)) is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
        finally:
            await connection.close()
        return found


def _keys(contents: list[QueueContent]) -> Counter[str]:
    return Counter(str(message.unique_key) for one in contents for message in one.messages)


def _pull(key: QueueKey, at: int) -> RemotingCommand:
    fields: dict[str, str | int] = {
        "topic": key[0], "queueId": key[1], "consumerGroup": "watchers", "queueOffset": at,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)
