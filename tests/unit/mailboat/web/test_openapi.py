"""The OpenAPI document: it names what is served, and every reference in it leads somewhere."""

import json
from typing import Any

import pytest

from mailboat.config import Role, load_settings
from mailboat.web.context import WebContext
from mailboat.web.openapi import build_document
from mailboat.web.server import build_app


def _served(role: Role) -> set[tuple[str, str]]:
    app = build_app(WebContext(load_settings(role)))
    return {
        (route.resource.canonical, route.method.lower())
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if "$ref" in value else set()
        return found.union(*(_references(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_references(item) for item in value))
    return set()


@pytest.mark.parametrize("role", ["broker", "namesrv", "standalone"])
def test_the_document_names_exactly_what_is_served(role: Role) -> None:
    """A path that is added and not described, or described and not served, fails here."""
    served = _served(role) - {("/openapi.json", "get")}
    document = build_document({path for path, _ in served})
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described == served


def test_every_reference_leads_to_a_schema() -> None:
    """Types that contain others bring them along."""
    document = json.loads(json.dumps(build_document({path for path, _ in _served("broker")})))
    schemas = document["components"]["schemas"]
    assert {reference.rpartition("/")[2] for reference in _references(document)} <= set(schemas)
    assert schemas["ProduceBody"]["properties"]["messages"]["minItems"] == 1
    assert "StoreState" in schemas


def test_every_path_parameter_is_described() -> None:
    """Names in braces have a parameter of that name."""
    document = build_document({path for path, _ in _served("broker")})
    [parameter] = document["paths"]["/api/v1/groups/{group}"]["get"]["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("group", "path", True)
