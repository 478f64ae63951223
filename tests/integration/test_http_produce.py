"""Batch produce over HTTP inside the broker: as safe, as prompt and as patient as over its port."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from locked_http import LockedHttp, basic, locked_http

from mailboat.client.pull_consumer import PullConsumer
from mailboat.model.hosts import decode_host
from mailboat.model.message_queue import MessageQueue
from mailboat.testing.cluster import Cluster

PATH = "/api/v1/topics/T/messages"
QUEUE = MessageQueue("T", "broker-a", 0)
BODY = {"messages": [{"body": "a"}, {"body": "b"}]}


async def _produce(http: LockedHttp) -> tuple[int, str]:
    status, answer, _ = await http.ask("POST", PATH, basic("producer"), BODY)
    return status, answer.get("status") or answer["error"]


async def test_records_hold_the_address_of_the_caller(tmp_path: Path) -> None:
    """And not that of the broker itself; the port is one of the caller's own."""
    async with Cluster(tmp_path) as cluster, locked_http(tmp_path, cluster=cluster) as http:
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with aiohttp.ClientSession(http.base, connector=connector) as session:
            elsewhere = LockedHttp(http.broker, http.users, session)
            assert await _produce(elsewhere) == (200, "SEND_OK")
        consumer = PullConsumer("G", namesrv=cluster.namesrv_addresses)
        await consumer.start()
        first, second = (await consumer.pull(QUEUE, 0, 32)).messages
        await consumer.close()
        host, port = decode_host(first.born_host)
        assert (host, first.born_host) == ("127.0.0.2", second.born_host)
        assert port not in (0, cluster.broker().port)
        # Nobody connected for it.
        assert cluster.broker().connection_count <= 1


async def test_a_pull_that_waits_gets_the_messages_at_once(tmp_path: Path) -> None:
    """It is woken by them, long before its own time is over."""
    async with Cluster(tmp_path) as cluster, locked_http(tmp_path, cluster=cluster) as http:
        consumer = PullConsumer("G", namesrv=cluster.namesrv_addresses)
        await consumer.start()
        waiting = asyncio.create_task(consumer.pull(QUEUE, 0, 32, suspend_s=20.0))
        async with asyncio.timeout(10):
            while not len(cluster.broker().pull_holds):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (await _produce(http))[0] == 200
            found = await waiting
        assert [message.payload() for message in found.messages] == [b"a", b"b"]
        await consumer.close()


async def test_with_synchronous_flush_an_answer_means_durable(tmp_path: Path) -> None:
    """All that is acknowledged lies below the flushed offset."""
    options = {"flushDiskType": "SYNC_FLUSH"}
    async with (
        Cluster(tmp_path, options=options) as cluster,
        locked_http(tmp_path, cluster=cluster) as http,
    ):
        assert await _produce(http) == (200, "SEND_OK")
        state = cluster.broker().store.state()
        assert state.flushed_physical_offset == state.max_physical_offset > 0


async def test_while_a_broker_hands_over_requests_wait(tmp_path: Path) -> None:
    """As those of connections do; they are stored once it leads on."""
    async with Cluster(tmp_path) as cluster, locked_http(tmp_path, cluster=cluster) as http:
        broker = cluster.broker()
        end = broker.store.commit_log.end
        broker._server.hold_up()
        waiting = asyncio.create_task(_produce(http))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert (done, broker.store.commit_log.end) == (set(), end)
        broker._server.go_on()
        assert await waiting == (200, "SEND_OK")


@pytest.mark.parametrize("is_held_up", [False, True])
async def test_a_broker_that_ends_refuses_and_stores_nothing(
    tmp_path: Path, is_held_up: bool
) -> None:
    """503: whoever is refused may send it to another one."""
    async with Cluster(tmp_path) as cluster, locked_http(tmp_path, cluster=cluster) as http:
        broker = cluster.broker()
        end = broker.store.commit_log.end
        if is_held_up:
            broker._server.hold_up()
        waiting = asyncio.create_task(_produce(http))
        if is_held_up:
            await asyncio.wait({waiting}, timeout=0.3)
        else:
            assert (await waiting)[0] == 200
            end = broker.store.commit_log.end
        ending = asyncio.create_task(broker.shutdown())
        while broker.phase == "serving":  # noqa: ASYNC110
            await asyncio.sleep(0)
        if not is_held_up:
            waiting = asyncio.create_task(_produce(http))
        status, reason = await waiting
        assert (status, "the broker is stop" in reason) == (503, True)
        await ending
        assert broker.store.commit_log.end == end


async def test_an_answer_that_does_not_come_is_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """504 in time; what comes later reaches nobody and harms nothing."""
    monkeypatch.setattr("mailboat.web.produce._TIMEOUT_MARGIN_S", 0.1)
    options = {"syncFlushTimeout": "1"}
    async with (
        Cluster(tmp_path, options=options) as cluster,
        locked_http(tmp_path, cluster=cluster) as http,
    ):
        broker = cluster.broker()
        sends = []
        monkeypatch.setattr(broker.dispatcher, "take_send", lambda *send: sends.append(send))
        status, reason = await _produce(http)
        assert (status, "the outcome is unknown" in reason) == (504, True)
        monkeypatch.undo()
        broker.dispatcher.take_send(*sends[0])
        assert await _produce(http) == (200, "SEND_OK")
        assert broker.store.queues.next_offset("T", 0) == 4
