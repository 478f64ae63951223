"""What routes need: there is a row for each of them, and none is open without one."""

import pytest
from aiohttp import web

from mailboat.config import Role, load_settings
from mailboat.web.context import WebContext
from mailboat.web.permissions import ROWS, Open, row_of
from mailboat.web.server import build_app

ROLES = ["broker", "namesrv", "standalone"]


def _app(role: Role) -> web.Application:
    return build_app(WebContext(load_settings(role)))


@pytest.mark.parametrize("role", ROLES)
def test_every_route_has_its_row(role: Role) -> None:
    """A route that is added without one is refused to everybody, and fails here."""
    missing = [route for route in _app(role).router.routes() if row_of(route) is None]
    assert missing == []


def test_every_row_has_its_route() -> None:
    """A row for what is not served would be a misspelt one."""
    served = {
        (route.method, route.resource.canonical)
        for role in ROLES
        for route in _app(role).router.routes()  # type: ignore[arg-type]
        if route.resource is not None
    }
    assert set(ROWS) <= served


def test_only_these_routes_need_no_rule() -> None:
    """What is open is open on purpose."""
    assert {path: row for (_, path), row in ROWS.items() if isinstance(row, Open)} == {
        "/livez": Open.PROBE,
        "/readyz": Open.PROBE,
        "/startupz": Open.PROBE,
        "/openapi.json": Open.TO_ALL,
        "/metrics": Open.METRICS,
    }
