"""Every route of the HTTP API by every kind of caller: what is answered, and that nothing else
happens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from http_matrix import ASKS, LAST, OPEN, PRODUCE, Ask
from locked_http import (
    TOPIC,
    LockedHttp,
    basic,
    bearer,
    locked_http,
)

from mailboat.config import Role, load_settings
from mailboat.node import Node
from mailboat.testing.cluster import SMALL_STORE
from mailboat.web.permissions import ROWS

UNKNOWN = {
    "without credentials": {},
    "wrong token": bearer("another-token-than-that"),
    "token as a user": basic("", "a-token-of-at-least-16"),
    "part of the token": bearer("a-token-of-at-least-1"),
    "secret as a token": bearer("12345678"),
    "two tokens": {"Authorization": "Bearer a-token-of-at-least-16, Bearer x"},
    "wrong secret": basic("root", "87654321"),
    "no secret": basic("root", ""),
    "unknown user": basic("nobody"),
    "disabled user": basic("disabled"),
    "no base64": {"Authorization": "Basic admin:secret"},
    "another scheme": {"Authorization": "Digest a-token-of-at-least-16"},
}


def test_every_row_is_asked_here() -> None:
    """A new route gets its line in this matrix."""
    assert set(ROWS) == set(ASKS) | OPEN


@pytest.mark.parametrize("kind", ["plain", "tls"])
@pytest.mark.parametrize("headers", UNKNOWN.values(), ids=UNKNOWN.keys())
async def test_strangers_are_told_nothing_and_change_nothing(
    tmp_path: Path, headers: dict[str, str], kind: str
) -> None:
    """401 with one text for all of them and for every path, whether there is such a path or not."""
    async with locked_http(tmp_path, kind=kind) as http:
        before = http.state()
        asks = [*ASKS.values(), Ask("GET", "/metrics"), Ask("GET", "/nope"), Ask("PUT", "/livez")]
        texts = set()
        for ask in asks:
            status, answer, sent = await http.ask(ask.method, ask.path, headers, ask.body)
            assert (status, sent["WWW-Authenticate"]) == (401, "Bearer"), ask
            texts.add(answer["error"])
        assert len(texts) == 1
        assert http.state() == before


@pytest.mark.parametrize("kind", ["plain", "tls"])
@pytest.mark.parametrize(
    ("name", "allowed"), [("nothing", ()), ("consumer", ()), ("producer", (PRODUCE,))]
)
async def test_users_do_what_their_rules_allow(
    tmp_path: Path, name: str, allowed: tuple[tuple[str, str], ...], kind: str
) -> None:
    """Everything else is 403 and has no effect; /metrics needs no rule."""
    async with locked_http(tmp_path, kind=kind) as http:
        for row, ask in ASKS.items():
            before = http.state()
            status, answer, _ = await http.ask(ask.method, ask.path, basic(name), ask.body)
            if row in allowed:
                assert status == 200, (row, answer)
                continue
            assert status == 403, (row, answer)
            assert answer["error"].startswith(f"User:{name} has no permission to access ")
            assert answer["error"].endswith(" from 127.0.0.1, no matched policies.")
            assert http.state() == before, row
        assert (await http.ask("GET", "/metrics", basic(name)))[0] == 200
        assert (await http.ask("GET", "/nope", basic(name)))[0] == 404


async def test_a_user_is_shown_by_its_state_alone(tmp_path: Path) -> None:
    """Who writes the files of users sees what counts: the new state, that it is off, that it is
    gone."""
    async with locked_http(tmp_path) as http:
        path = "/api/v1/users/producer"
        http.users.change("producer", revision="u-7")
        shown = {"user": "producer", "revision": "u-7", "is_enabled": True, "quotas": {}}
        assert (await http.ask("GET", path, bearer()))[:2] == (200, shown)
        http.users.change("producer", is_enabled=False)
        status, answer, _ = await http.ask("GET", path, bearer())
        assert (status, answer["is_enabled"]) == (200, False)
        del http.users.table["producer"]
        assert (await http.ask("GET", path, bearer()))[0] == 404


@pytest.mark.parametrize("kind", ["plain", "tls"])
@pytest.mark.parametrize("headers", [bearer(), basic("root")], ids=["token", "super user"])
async def test_tokens_and_super_users_may_do_all(
    tmp_path: Path, headers: dict[str, str], kind: str
) -> None:
    """Each request is answered as by an open port."""
    async with locked_http(tmp_path, kind=kind) as http:
        for row in sorted(ASKS, key=lambda row: row == LAST):
            ask = ASKS[row]
            status, answer, _ = await http.ask(ask.method, ask.path, headers, ask.body)
            assert status == ask.answered, (row, answer)
        assert (await http.ask("GET", "/metrics", headers))[0] == 200
        assert (await http.ask("POST", "/livez", headers))[2]["Allow"] == "GET,HEAD"


async def test_a_rule_allows_its_own_topic_only(tmp_path: Path) -> None:
    """The topic is that of the path as the store gets it; letters with % are decoded once."""
    async with locked_http(tmp_path) as http:
        before, body = http.state(), {"messages": [{"body": "x"}]}
        for topic in ("T2", "t", "%54%54", "T%00", "T%20", "..%2FT", "%2554", "%25RETRY%25T"):
            path = f"/api/v1/topics/{topic}/messages"
            assert (await http.ask("POST", path, basic("producer"), body))[0] == 403, topic
        assert http.state() == before
        assert (await http.ask("POST", "/api/v1/topics/%54/messages", basic("producer"), body))[
            0
        ] == 200


@pytest.mark.parametrize("topic", [TOPIC, "other"])
async def test_head_needs_what_get_needs(tmp_path: Path, topic: str) -> None:
    """A HEAD would tell whether there is such a topic."""
    async with locked_http(tmp_path) as http:
        path = f"/api/v1/topics/{topic}"
        assert (await http.ask("HEAD", path))[0] == 401
        assert (await http.ask("HEAD", path, basic("producer")))[0] == 403


async def test_declarations_need_a_rule_for_each_name(tmp_path: Path) -> None:
    """One that is not allowed refuses all, and nothing at all is nothing to be allowed."""
    async with locked_http(tmp_path) as http:
        http.users.add("creator", ("Topic:a", "Create"), ("Group:b", "Create"))
        before = http.state()
        refused: list[Any] = [
            {"topics": [{"topic_name": "a"}, {"topic_name": "b"}]},
            {"topics": [{"topic_name": "a"}], "groups": [{"group_name": "a"}]},
            {},
        ]
        for body in refused:
            assert (await http.ask("POST", "/api/v1/declarations", basic("creator"), body))[
                0
            ] == 403
        assert http.state() == before
        body = {"topics": [{"topic_name": "a"}], "groups": [{"group_name": "b"}]}
        status, made, _ = await http.ask("POST", "/api/v1/declarations", basic("creator"), body)
        assert (status, made) == (200, {"topics": 1, "groups": 1})


async def test_without_authorization_every_user_may_do_all(tmp_path: Path) -> None:
    """As over remoting: a user needs no rules, and has to be one all the same."""
    async with locked_http(tmp_path, authorizationEnabled="false") as http:
        assert (await http.ask("GET", "/api/v1/config", basic("nothing")))[0] == 200
        assert (await http.ask("GET", "/api/v1/config", basic("nothing", "x")))[0] == 401


async def test_a_token_alone_locks_the_port(tmp_path: Path) -> None:
    """Without authentication there are no users, and strangers are refused all the same."""
    async with locked_http(
        tmp_path, authenticationEnabled="false", authorizationEnabled="false"
    ) as http:
        assert (await http.ask("GET", "/api/v1/topics"))[0] == 401
        assert (await http.ask("GET", "/api/v1/topics", bearer()))[0] == 200


async def test_probes_are_open_and_short_to_strangers(tmp_path: Path) -> None:
    """A reason may name files and addresses; whoever says who it is hears it."""
    async with locked_http(tmp_path) as http:
        assert (await http.ask("GET", "/livez"))[:2] == (200, {"status": "alive"})
        assert (await http.ask("GET", "/readyz"))[:2] == (200, {"status": "ready"})
        assert (await http.ask("GET", "/startupz"))[:2] == (200, {"status": "started"})
        assert (await http.ask("GET", "/openapi.json"))[0] == 200
        http.broker.supervisor.fail("fsync failed: /secret/place")
        for headers in ({}, bearer("x" * 16), basic("disabled")):
            assert (await http.ask("GET", "/livez", headers))[:2] == (503, {"status": "failed"})
            assert (await http.ask("GET", "/readyz", headers))[:2] == (503, {"status": "unready"})
        _, told, _ = await http.ask("GET", "/livez", basic("nothing"))
        assert told["reason"] == "fsync failed: /secret/place"
        assert "recovery" in (await http.ask("GET", "/startupz", bearer()))[1]


async def test_metrics_may_be_open(tmp_path: Path) -> None:
    """httpMetricsOpen opens that page and nothing else."""
    async with locked_http(tmp_path, httpMetricsOpen="true") as http:
        assert (await http.ask("GET", "/metrics"))[0] == 200
        assert (await http.ask("GET", "/api/v1/topics"))[0] == 401


async def test_a_user_that_changes_counts_from_the_next_request_on(tmp_path: Path) -> None:
    """Nothing of a user is remembered between requests, also on one connection."""
    async with locked_http(tmp_path) as http:
        assert (await http.ask("GET", "/api/v1/topics", basic("root")))[0] == 200
        http.users.change("root", secrets=(b"new", b"12345678"), is_super=False)
        assert (await http.ask("GET", "/api/v1/topics", basic("root")))[0] == 403
        assert (await http.ask("GET", "/api/v1/topics", basic("root", "new")))[0] == 403
        del http.users.table["root"]
        assert (await http.ask("GET", "/api/v1/topics", basic("root")))[0] == 401


async def test_a_token_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new token counts, an old one no more; a broken file changes nothing, an empty one all."""
    monkeypatch.setattr("mailboat.web.tokens.CHECK_S", 0.01)
    file = tmp_path / "tokens"
    file.write_text(f"\n {'1' * 16} \r\n{'2' * 16}\n")
    async with locked_http(tmp_path, httpTokenFile=str(file)) as http:

        async def until(token: str, status: int) -> None:
            async with asyncio.timeout(20):
                while await _status(http, bearer(token)) != status:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await until("1" * 16, 200)
        await until("2" * 16, 200)
        file.write_text("3" * 16)
        await until("3" * 16, 200)
        await until("1" * 16, 401)
        file.write_text("short-secret")
        async with asyncio.timeout(20):
            while "line 1: a token must be 16 to" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "short-secret" not in caplog.text
        await until("3" * 16, 200)
        file.write_text("")
        await until("3" * 16, 401)
        await until("a-token-of-at-least-16", 200)


async def test_ways_to_spell_credentials(tmp_path: Path) -> None:
    """Schemes have no case, and a user has at most two secrets at a time."""
    async with locked_http(tmp_path) as http:
        token = bearer()["Authorization"].removeprefix("Bearer ")
        for value in (f"bearer {token}", f"BEARER  {token} "):
            assert (await _status(http, {"Authorization": value})) == 200
        pair = basic("root")["Authorization"].removeprefix("Basic ")
        assert (await _status(http, {"Authorization": f"basic {pair}"})) == 200
        for value in ("", "Bearer", f"Bearer\t{token}", token, f"Basic {token}", "Basic \xe9"):
            assert (await _status(http, {"Authorization": value})) == 401


async def _status(http: LockedHttp, headers: dict[str, str]) -> int:
    status, _, _ = await http.ask("GET", "/api/v1/topics", headers)
    return status


async def test_refusals_and_changes_are_lines_of_the_audit_log(tmp_path: Path) -> None:
    """One for each, of ASCII, whatever the path holds; what was only looked at is none."""
    log = tmp_path / "audit.log"
    async with locked_http(tmp_path, auditLogPath=str(log)) as http:
        await http.ask("GET", "/api/v1/topics/a%0Ab", basic("producer"))
        await http.ask("GET", "/api/v1/topics", basic("root"))
        await http.ask(
            "POST", f"/api/v1/topics/{TOPIC}/messages", basic("root"), ASKS[PRODUCE].body
        )
        await http.ask("DELETE", f"/api/v1/topics/{TOPIC}", basic("root"))
        await http.ask("DELETE", f"/api/v1/topics/{TOPIC}", basic("root", "planted-secret"))
    text = log.read_text("ascii")
    assert "planted-secret" not in text
    events = [json.loads(line) for line in text.splitlines()][2:]  # Behind the first two changes.
    assert [(event["event"], event["user"], event["request"]) for event in events] == [
        ("refused", "producer", "GET /api/v1/topics/a%0Ab"),
        ("allowed", "root", "DELETE /api/v1/topics/T"),
        ("refused", "", "DELETE /api/v1/topics/T"),
    ]
    assert events[0]["reason"] == "no Get of Topic:a\nb"
    assert events[0]["address"] == "127.0.0.1"


@pytest.mark.parametrize("probe", ["/livez", "/readyz", "/startupz"])
async def test_guesses_at_a_probe_are_lines_of_the_audit_log(tmp_path: Path, probe: str) -> None:
    """A probe answers whoever asks, and says whether a secret fits: no guess goes unseen."""
    log = tmp_path / "audit.log"
    async with locked_http(tmp_path, auditLogPath=str(log)) as http:
        for headers in ({}, basic("root", "planted-secret"), bearer("planted-secret-1"), bearer()):
            assert (await http.ask("GET", probe, headers))[0] == 200
    text = log.read_text("ascii")
    assert "planted-secret" not in text
    events = [json.loads(line) for line in text.splitlines()][2:]  # Behind the first two changes.
    assert [(event["event"], event["request"], event["reason"]) for event in events] == [
        ("refused", f"GET {probe}", "not authenticated")
    ] * 2


@pytest.mark.parametrize("role", ["standalone", "namesrv"])
async def test_a_process_knows_the_users_of_its_settings(tmp_path: Path, role: Role) -> None:
    """HTTP asks the directory that remoting asks, and a name server has no cluster of its own."""
    user = json.dumps({"username": "root", "password": "12345678"})
    overrides = {
        "httpPort": "0",
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": user,
    }
    if role == "standalone":
        overrides |= {**SMALL_STORE, "namesrvListenPort": "0", "storePathRootDir": str(tmp_path)}
    node = Node(load_settings(role, overrides=overrides))
    await node.start()
    try:
        await node.wait_http()
        async with aiohttp.ClientSession(f"http://{node.addresses()['http']}") as session:

            async def status(headers: dict[str, str]) -> int:
                async with session.get("/api/v1/cluster", headers=headers) as answer:
                    return answer.status

            assert await status({}) == 401
            assert await status(basic("root", "87654321")) == 401
            assert await status(basic("root")) == 200
            async with session.get("/readyz") as answer:
                assert (answer.status, await answer.json()) == (200, {"status": "ready"})
    finally:
        await node.shutdown()
