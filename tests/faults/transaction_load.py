"""A producer of transactions, which decides once about each and never again."""

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Final

from kill_process import PlainConnection, send_request

from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.record import decode_record
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from mailboat.testing.replica_history import Transactions

_GROUP: Final = "payers"
_COMMIT, _ROLLBACK = 8, 12
_NUMBERS: Final = count()
_DEPTH: Final = 2
_PAUSE_S: Final = 0.1
_LAST_ANSWERS_S: Final = 0.5


class TransactionProducer:
    """Sends half messages, ends most of them, and answers when it is asked for the end."""

    def __init__(self, topic: str, transactions: Transactions, random: Random) -> None:
        """Note in `transactions` what is decided and answered."""
        self._topic = topic
        self._transactions = transactions
        self._random = random

    async def work(self, connection: PlainConnection, is_wanted: Callable[[], bool]) -> None:
        """Begin and end transactions, and answer questions, until no more are wanted.

        Raises:
            OSError: the connection is gone.
        """
        prepared: dict[int, str] = {}
        receiving = asyncio.create_task(self._receive(connection, prepared))
        try:
            while is_wanted() and not receiving.done():
                if len(prepared) < _DEPTH:
                    key, request = self._half()
                    prepared[connection.send(request)] = key
                await asyncio.wait([receiving], timeout=_PAUSE_S)
            await asyncio.wait([receiving], timeout=_LAST_ANSWERS_S)
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def answer(self, connection: PlainConnection) -> None:
        """Answer questions as long as the connection lives.

        Raises:
            OSError: the connection is gone.
        """
        await self._receive(connection, {})

    def _half(self) -> tuple[str, RemotingCommand]:
        key = f"T{next(_NUMBERS)}"
        self._transactions.begin(key, commits=self._random.random() < 0.5)
        text = f"TRAN_MSG\x01true\x02PGROUP\x01{_GROUP}\x02UNIQ_KEY\x01{key}\x02"
        return key, send_request(self._topic, self._random.randrange(4), key.encode(), text)

    async def _receive(self, connection: PlainConnection, prepared: dict[int, str]) -> None:
        data = HeartbeatData(f"10.9.0.4@{next(_NUMBERS)}")
        data.producer_data_set.append(ProducerData(_GROUP))
        connection.send(RemotingCommand.request(RequestCode.HEART_BEAT, {}, encode_heartbeat(data)))
        while True:
            command = await connection.receive()
            if command.is_response:
                if (key := prepared.pop(command.opaque, None)) is not None:
                    self._prepared(connection, key, command)
            elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
                message, _ = decode_record(command.body, verify=False)
                fields = command.ext_fields
                places = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
                self._end(connection, str(message.unique_key), places, from_check=True)

    def _prepared(self, connection: PlainConnection, key: str, answer: RemotingCommand) -> None:
        if answer.code == ResponseCode.SUCCESS:
            self._transactions.prepare(key)
            if self._random.random() < 0.85:
                place = decode_offset_message_id(answer.ext_fields["msgId"])
                places = int(answer.ext_fields["queueOffset"]), place.physical_offset
                self._end(connection, key, places, from_check=False)
        elif answer.code not in (
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
        ):
            self._transactions.refuse(key)

    def _end(
        self, connection: PlainConnection, key: str, places: tuple[int, int], *, from_check: bool
    ) -> None:
        decision = _COMMIT if self._transactions.commits(key) else _ROLLBACK
        fields: dict[str, str | int | bool] = {
            "producerGroup": _GROUP, "tranStateTableOffset": places[0],
            "commitLogOffset": places[1], "commitOrRollback": decision,
            "fromTransactionCheck": from_check, "msgId": key,
        }  # fmt: skip
        request = RemotingCommand.request(RequestCode.END_TRANSACTION, fields, oneway=from_check)
        connection.send(request)
