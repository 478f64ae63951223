"""What no HTTP request may be, and what every answer says, on an open port and on a locked one."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from locked_http import bearer, locked_http

from mailboat.config import change_settings, live_keys, load_settings, role_settings
from mailboat.errors import ConfigError
from mailboat.testing.cluster import Cluster

MESSAGES = "/api/v1/topics/T/messages"
BODY = b'{"messages":[{"body":"x"}]}'


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Ask an open port on the loopback address."""
    async with Cluster(tmp_path, options={"httpPort": "0"}) as cluster:
        base = f"http://{await cluster.http_address()}"
        async with aiohttp.ClientSession(base, auto_decompress=False) as session:
            yield session


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"])
async def test_packed_bodies_are_refused_and_not_unpacked(
    session: aiohttp.ClientSession, coding: str
) -> None:
    """A few bytes could become gigabytes; the connection goes on."""
    data = gzip.compress(BODY)
    async with session.post(MESSAGES, data=data, headers={"Content-Encoding": coding}) as answer:
        assert (answer.status, "error" in await answer.json()) == (415, True)
    headers = {"Content-Encoding": "identity"}
    async with session.post(MESSAGES, data=BODY, headers=headers) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "status", "cached"),
    [
        ("/api/v1/broker", 200, "no-store"),
        ("/api/v1/topics/none", 404, "no-store"),
        ("/api/v1/none", 404, "no-store"),
        ("/metrics", 200, None),
        ("/livez", 200, None),
    ],
)
async def test_answers_say_how_to_treat_them(
    session: aiohttp.ClientSession, path: str, status: int, cached: str | None
) -> None:
    """Errors too; none may be read by a page of another site."""
    async with session.get(path, headers={"Origin": "http://evil.example"}) as answer:
        assert (answer.status, answer.headers.get("Cache-Control")) == (status, cached)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not any(name.startswith("Access-Control") for name in answer.headers)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("10.0.0.1", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
async def test_a_port_of_this_machine_has_no_other_name(
    session: aiohttp.ClientSession, host: str, status: int
) -> None:
    """A page whose name was made to lead here (DNS rebinding) sends that name."""
    async with session.get("/api/v1/topics", headers={"Host": host}) as answer:
        assert answer.status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1", "Host": "localhost:1"}, 200),
        ({"Origin": "http://localhost:1", "Host": "localhost:2"}, 403),
    ],
)
async def test_pages_of_other_sites_change_nothing(
    session: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    """A browser sends a form to wherever a page says, and says whose page it was."""
    headers = {**headers, "Content-Type": "text/plain"}
    async with session.post(MESSAGES, data=BODY, headers=headers) as answer:
        assert answer.status == status
    async with session.get("/api/v1/topics") as answer:
        names = [item["topic"] for item in (await answer.json())["topics"]]
    assert ("T" in names) == (status == 200)


async def test_a_port_for_everybody_has_any_name(tmp_path: Path) -> None:
    """What listens for other machines is reached by names."""
    async with locked_http(tmp_path, bindAddress="0.0.0.0") as http:
        headers = {**bearer(), "Host": "broker-a.mq.svc"}
        assert (await http.ask("GET", "/api/v1/topics", headers))[0] == 200


async def test_a_request_without_a_host_is_of_no_browser(session: aiohttp.ClientSession) -> None:
    """HTTP/1.0 knows none."""
    async with session.get("/livez") as answer:
        assert answer.connection is not None or answer.status == 200
        host, port = answer.url.host, answer.url.port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_settings_that_are_secret_are_neither_shown_nor_changed(tmp_path: Path) -> None:
    """Whoever may read and change the configuration does not get at them."""
    async with locked_http(tmp_path) as http:
        status, shown, _ = await http.ask("GET", "/api/v1/config", bearer())
        assert status == 200
        secrets = {key for key, item in role_settings("broker").items() if item.rules.is_secret}
        assert "httpToken" in secrets
        for key in secrets:
            assert shown["values"][key] in ("", "<hidden>")
            asked = await http.ask("PATCH", "/api/v1/config", bearer(), {key: "planted-value-1"})
            assert asked[0] == 400
            assert "planted-value-1" not in asked[1]["error"]


@pytest.mark.parametrize("role", ["broker", "standalone"])
def test_no_setting_that_locks_is_live(role: str) -> None:
    """Nobody unlocks a port through it."""
    settings = load_settings(role)  # type: ignore[arg-type]
    of_security = {
        key
        for key, item in role_settings(settings.role).items()
        if item.section in ("security", "tls") or item.rules.is_secret
    }
    assert not of_security & live_keys(settings.role)
    with pytest.raises(ConfigError):
        change_settings(settings, {"authenticationEnabled": "false"}, "live")
