"""How errors are answered and logged."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from mailboat.web.replies import answer_errors


def _client() -> TestClient[web.Request, web.Application]:
    async def broken(_: web.Request) -> web.Response:
        raise RuntimeError("a fault of ours")

    async def refused(_: web.Request) -> web.Response:
        raise web.HTTPUnauthorized(
            text="who are you", headers=[("WWW-Authenticate", "Bearer"), ("Retry-After", "5")]
        )

    app = web.Application(middlewares=[answer_errors])
    app.router.add_get("/broken/{name}", broken)
    app.router.add_get("/refused", refused)
    return TestClient(TestServer(app))


async def test_no_path_makes_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A path is logged as it was sent: decoded it could hold lines of its own."""
    async with _client() as client:
        answer = await client.get("/broken/a%0A2026-01-01%20forged")
        assert answer.status == 500
    [line] = [item.getMessage() for item in caplog.records if item.name == "mailboat.web.replies"]
    assert line == "request failed: GET /broken/a%0A2026-01-01%20forged"


async def test_an_error_keeps_its_headers_and_gets_its_own_body() -> None:
    """Whoever is refused learns from them what to do."""
    async with _client() as client:
        answer = await client.get("/refused")
        assert await answer.json() == {"error": "who are you"}
        assert (answer.headers["WWW-Authenticate"], answer.headers["Retry-After"]) == (
            "Bearer",
            "5",
        )
        assert answer.headers.getall("Content-Type") == ["application/json"]
        posted = await client.post("/refused")
        assert (posted.status, posted.headers["Allow"]) == (405, "GET,HEAD")
