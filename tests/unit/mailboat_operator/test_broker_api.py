"""Tests of the calls of a broker's HTTP API, against a small server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.broker_api import (
    BrokerApi,
    BrokerApiError,
    BrokerRefusedError,
    ChangedError,
    StrangerError,
    http_url,
)
from mailboat_operator.broker_token import BrokerToken
from mailboat_operator.identity import Expected
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.pods import is_ready


class _Broker:
    def __init__(self) -> None:
        self.received: list[tuple[str, str, Any]] = []
        self.status = 200
        self.answer: Any = {}
        self.hangs = False
        self.url = ""
        self.if_match: str | None = None
        self.authorization: str | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.received.append((request.method, request.raw_path, text))
        self.if_match = request.headers.get("If-Match")
        self.authorization = request.headers.get("Authorization")
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer, status=self.status)
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def broker() -> AsyncIterator[_Broker]:
    """A broker whose answers the test sets."""
    made = _Broker()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def api(metrics: OperatorMetrics) -> AsyncIterator[BrokerApi]:
    """The API with a short timeout."""
    made = BrokerApi(metrics, timeout_s=0.5)
    yield made
    await made.close()


async def test_config_is_read_and_changed(broker: _Broker, api: BrokerApi) -> None:
    """The effective values come back as text, from reading and from changing."""
    broker.answer = {"values": {"fileReservedTime": "72", "listenPort": 10911}, "live_keys": []}
    expected = {"fileReservedTime": "72", "listenPort": "10911"}
    assert await api.config(broker.url) == expected
    assert await api.patch_config(broker.url, {"fileReservedTime": "72"}) == expected
    assert broker.received == [
        ("GET", "/api/v1/config", ""),
        ("PATCH", "/api/v1/config", '{"fileReservedTime": "72"}'),
    ]


async def test_a_refusal_is_the_brokers_sentence(broker: _Broker, api: BrokerApi) -> None:
    """400 is what the broker says of it, and not a trouble of the network."""
    broker.status, broker.answer = 400, {"error": "deleteWhen=25: is no hour"}
    with pytest.raises(BrokerRefusedError, match=r"^deleteWhen=25: is no hour$"):
        await api.patch_config(broker.url, {"deleteWhen": "25"})


@pytest.mark.parametrize(
    ("status", "answer"),
    [(500, {"error": "broken"}), (200, b"<html>"), (200, []), (302, {}), (200, b"x" * (5 << 20))],
)
async def test_what_is_not_as_agreed(
    broker: _Broker, api: BrokerApi, status: int, answer: Any
) -> None:
    """An error, no JSON, another form, a redirect, or too many bytes: all one kind of error."""
    broker.status, broker.answer = status, answer
    with pytest.raises(BrokerApiError):
        await api.retention(broker.url)


_NESTED = b'{"a":' * 100_000
_VOLUME = {"capacity_bytes": 10, "used_bytes": 5, "available_bytes": 5}


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        *((call, _NESTED) for call in ("broker", "startup", "config", "retention", "topic")),
        ("broker", {"version": "1" * 300}),
        ("broker", {"broker_name": b"\xed\xa0\x80".decode("utf-8", "surrogatepass")}),
        ("broker", {"name_servers": [{"address": "a", "held_by": "x" * 40_000}]}),
        ("retention", {"max_physical_offset": 10**400}),
        ("retention", {"max_physical_offset": 1, "volume": {**_VOLUME, "available_bytes": -1}}),
        ("retention", {"max_physical_offset": 1, "volume": {**_VOLUME, "used_bytes": 10**400}}),
        ("retention", {"max_physical_offset": 1, "preallocated_bytes": -(10**30)}),
        ("retention", {"max_physical_offset": 1, "segments": [{"last_timestamp_ms": 10**400}]}),
        ("topic", {}),
        ("topic", {"read_queue_nums": 8, "write_queue_nums": None, "perm": 6}),
        ("topic", {"read_queue_nums": -1, "write_queue_nums": 8, "perm": 6}),
        ("topic", {"read_queue_nums": 8, "write_queue_nums": 8, "perm": 6, "queues": [1]}),
        ("declared", {}),
        ("declared", {"topics": [{}]}),
        ("declared", {"topics": {"a": 1}}),
        ("declared", {"topics": [], "next": 5}),
        ("declared", {"topics": [{"topic_name": "t"}], "next": "t"}),
        ("declare", {"topics": "many"}),
    ],
)
async def test_no_answer_breaks_the_turn(
    broker: _Broker, api: BrokerApi, call: str, answer: Any
) -> None:
    """Whatever a broker answers is a trouble of this broker alone: the rest of a plan goes on."""
    broker.answer = answer
    arguments: dict[str, tuple[Any, ...]] = {
        "topic": ("t",),
        "declared": ("topics", "t"),
        "declare": ({"topics": []},),
    }
    with pytest.raises(BrokerApiError):
        await getattr(api, call)(broker.url, *arguments.get(call, ()))


async def test_long_refusals_are_cut(broker: _Broker, api: BrokerApi) -> None:
    """A status has room for some words of each broker."""
    broker.status, broker.answer = 400, {"error": "x" * 100_000}
    with pytest.raises(BrokerRefusedError, match=r"^x{1000}$"):
        await api.patch_config(broker.url, {"deleteWhen": "25"})


async def test_no_answer_is_an_error_in_time(broker: _Broker, api: BrokerApi) -> None:
    """A broker that hangs, and one that is not there, cost no more than the timeout."""
    broker.hangs = True
    with pytest.raises(BrokerApiError):
        await api.broker(broker.url)
    with pytest.raises(BrokerApiError):
        await api.broker("http://127.0.0.1:1")


async def test_topics(broker: _Broker, api: BrokerApi) -> None:
    """Names are quoted; an unknown topic is None when read and success when deleted."""
    broker.answer = {"topic": "%RETRY%g", "read_queue_nums": 8, "write_queue_nums": 4, "perm": 6}
    assert await api.topic(broker.url, "%RETRY%g") == broker.answer
    await api.put_topic(broker.url, "t", read_queue_nums=8, write_queue_nums=4, perm=6)
    broker.status = 404
    assert await api.topic(broker.url, "t") is None
    await api.delete_topic(broker.url, "t")
    assert broker.received == [
        ("GET", "/api/v1/topics/%25RETRY%25g", ""),
        (
            "PUT",
            "/api/v1/topics/t",
            '{"read_queue_nums": 8, "write_queue_nums": 4, "perm": 6}',
        ),
        ("GET", "/api/v1/topics/t", ""),
        ("DELETE", "/api/v1/topics/t", ""),
    ]


async def test_a_broker_that_knows_no_declarations_refuses_none(
    broker: _Broker, api: BrokerApi
) -> None:
    """An older version answers 404: that may pass with its image, and is nobody's mistake."""
    broker.status, broker.answer = 404, {"error": "Not Found"}
    with pytest.raises(BrokerApiError, match="501"):
        await api.declared(broker.url, "topics", "a b")
    with pytest.raises(BrokerApiError, match="501"):
        await api.declare(broker.url, {"topics": []})
    broker.status, broker.answer = 200, {"topics": [], "next": None}
    assert await api.declared(broker.url, "topics", "%a") == broker.answer
    assert broker.received[-1][1] == "/api/v1/declarations/topics?limit=1000&after=%25a"


async def test_who_answers_is_checked(broker: _Broker, api: BrokerApi) -> None:
    """An address may have another owner by now; a name is asked for where it matters."""
    broker.answer = {"broker_name": "bills-g0"}
    assert await api.broker(broker.url, Expected("bills-g0")) == broker.answer
    with pytest.raises(StrangerError, match="broker bills-g0 answers where orders-g0 should be"):
        await api.broker(broker.url, Expected("orders-g0"))


async def test_a_topic_made_anew_is_not_deleted(broker: _Broker, api: BrokerApi) -> None:
    """The deletion names the topic that was seen; a broker that has another one refuses."""
    await api.delete_topic(broker.url, "t", incarnation="17-0")
    assert broker.if_match == '"17-0"'
    await api.delete_topic(broker.url, "t")
    assert broker.if_match is None
    broker.status, broker.answer = 412, {"error": "topic t is not the one that If-Match names"}
    with pytest.raises(ChangedError):
        await api.delete_topic(broker.url, "t", incarnation="17-0")


async def test_a_change_waits_no_longer_than_it_may(broker: _Broker, metrics: Any) -> None:
    """What the caller has left to write ends a call that would take longer."""
    broker.hangs = True
    api = BrokerApi(metrics, timeout_s=30.0)
    topic = {"read_queue_nums": 1, "write_queue_nums": 1, "perm": 6}
    try:
        async with asyncio.timeout(5):
            for call in (
                api.patch_config(broker.url, {"a": "1"}, within_s=0.1),
                api.put_topic(broker.url, "t", **topic, within_s=0.1),
                api.delete_topic(broker.url, "t", within_s=0.1),
            ):
                with pytest.raises(BrokerApiError):
                    await call
    finally:
        await api.close()


def test_the_address_of_a_pod() -> None:
    """The port is the one called http; IPv6 addresses are bracketed; no address, no URL."""
    spec = {"containers": [{"ports": [{"name": "http", "containerPort": 18080}]}]}
    assert http_url({"spec": spec, "status": {"podIP": "10.1.2.3"}}) == "http://10.1.2.3:18080"
    assert http_url({"spec": {}, "status": {"podIP": "fd00::7"}}) == "http://[fd00::7]:8080"
    assert http_url({"spec": spec, "status": {}}) is None


def test_readiness_of_a_pod() -> None:
    """A pod that is about to end is not ready, whatever its condition still says."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert is_ready({"metadata": {}, "status": ready})
    assert not is_ready({"metadata": {"deletionTimestamp": "x"}, "status": ready})
    assert not is_ready({"metadata": {}, "status": {"conditions": [{"type": "Ready"}]}})
    assert not is_ready({"metadata": {}})


async def test_the_token_of_a_file_is_shown(
    broker: _Broker, metrics: OperatorMetrics, tmp_path: Path
) -> None:
    """The first one, with every call and beside other headers; without a file there is none."""
    file = tmp_path / "tokens"
    file.write_text(f"\n{'1' * 16}\n{'2' * 16}\n")
    broker.answer = {"values": {}}
    api = BrokerApi(metrics, token_file=str(file))
    await api.config(broker.url)
    assert broker.authorization == f"Bearer {'1' * 16}"
    await api.delete_topic(broker.url, "t", incarnation="i")
    assert (broker.authorization, broker.if_match) == (f"Bearer {'1' * 16}", '"i"')
    await api.close()
    without = BrokerApi(metrics)
    await without.config(broker.url)
    assert broker.authorization is None
    await without.close()


async def test_a_token_that_is_not_known_yet_may_be_later(broker: _Broker, api: BrokerApi) -> None:
    """401 is a trouble that passes, what the broker says is told; 403 is a refusal."""
    broker.status, broker.answer = 401, {"error": "this needs a valid bearer token"}
    with pytest.raises(BrokerApiError, match="this needs a valid bearer token"):
        await api.config(broker.url)
    broker.status = 403
    with pytest.raises(BrokerRefusedError):
        await api.config(broker.url)


async def test_a_broken_token_file_is_told_and_no_token_is_made_up(
    broker: _Broker, metrics: OperatorMetrics, tmp_path: Path
) -> None:
    """Nothing is asked without a token; the text says nothing of what the file holds."""
    file = tmp_path / "tokens"
    api = BrokerApi(metrics, token_file=str(file))
    for content, reason in (
        (None, "No such file"),
        ("", "the first token is missing"),
        ("short-secret", "must be 16 to"),
    ):
        if content is not None:
            file.write_text(content)
        with pytest.raises(BrokerApiError, match=reason) as raised:
            await api.config(broker.url)
        assert "short-secret" not in str(raised.value)
    assert broker.received == []
    await api.close()


async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    """Every five seconds, as a mounted Secret changes without a word."""
    file, clock = tmp_path / "tokens", VirtualTime()
    file.write_text("1" * 16)
    token = BrokerToken(str(file), clock=clock.monotonic)
    assert await token.headers() == {"Authorization": f"Bearer {'1' * 16}"}
    file.write_text("2" * 16)
    clock.advance(4.9)
    assert await token.headers() == {"Authorization": f"Bearer {'1' * 16}"}
    clock.advance(0.1)
    assert await token.headers() == {"Authorization": f"Bearer {'2' * 16}"}
