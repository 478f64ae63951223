"""Transactions over a change of who leads: what ended once has ended."""

from pathlib import Path

import pytest
from raw_client import RawClient
from replica_nodes import ReplicaNodes

from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.names import HALF_TOPIC
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue

_COMMIT, _ROLLBACK = 8, 12
_HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K\x02"


async def _end_once(client: RawClient, nodes: ReplicaNodes, state: int) -> None:
    """Prepare a transaction, and end it once the slave shows it."""
    message_id = await client.send("T", b"paid", properties=_HALF)
    slave = nodes.broker(1).store
    await nodes.until(lambda: slave.max_offset(HALF_TOPIC, 0) == 1)
    fields: dict[str, ExtValue] = {
        "producerGroup": "PG", "tranStateTableOffset": 0,
        "commitLogOffset": decode_offset_message_id(message_id).physical_offset,
        "commitOrRollback": state, "fromTransactionCheck": False, "msgId": "K",
    }  # fmt: skip
    answer = await client.call(RequestCode.END_TRANSACTION, fields)
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("state", [_COMMIT, _ROLLBACK])
async def test_an_end_that_is_not_confirmed_yet_counts(tmp_path: Path, state: int) -> None:
    """A new leader finds it in its log, and asks nobody for it again."""
    for number in range(5):
        if await _take_over(tmp_path / str(number), state):
            return
    raise AssertionError("the slave was told in time that the end is confirmed, five times")


async def _take_over(root: Path, state: int) -> bool:
    """Let a slave lead once a transaction has ended; tell whether it had not heard of that yet."""
    checks = {"transactionTimeOut": "50", "transactionCheckInterval": "50"}
    async with ReplicaNodes(root, 2, checks) as nodes:
        await nodes.in_sync()
        client = RawClient(nodes.broker(0).address)
        await client.make_topic("T", 1)
        await _end_once(client, nodes, state)
        await client.close()
        await nodes.stop(0)
        await nodes.promote(1)
        leader = nodes.broker(1)
        # Nothing is confirmed by one of two: what the slave was not told of stays held back.
        is_held_back = leader.store.dispatch.is_holding
        await nodes.start(0)
        await nodes.in_sync()
        await nodes.until(lambda: leader.transactions.is_ready)
        assert leader.transactions.open_halves == 0
        assert leader.store.max_offset("T", 0) == (1 if state == _COMMIT else 0)
        return is_held_back
