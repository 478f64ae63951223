"""The schema: what Kubernetes asks of a structural one, and what `kubectl explain` shows."""

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, inspect

from mailboat_operator.crds.definitions import DEFINITIONS
from mailboat_operator.crds.reference import rules
from mailboat_operator.crds.schema import struct_schema

FORBIDDEN = {
    "$ref", "allOf", "not", "oneOf", "definitions", "dependencies", "deprecated", "discriminator",
    "id", "patternProperties", "propertyNames", "readOnly", "uniqueItems", "writeOnly", "xml",
}  # fmt: skip
FREE = "x-kubernetes-preserve-unknown-fields"


def walk(schema: dict[str, Any], path: str = ""):
    """Yield every node of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}" if path else name)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from walk(schema[key], f"{path}[]")


@pytest.fixture(params=[definition.kind for definition in DEFINITIONS])
def nodes(request, schemas):
    """All nodes of one kind's schema, by path."""
    return dict(walk(schemas[request.param]))


def test_only_what_a_structural_schema_may_hold(nodes):
    """Nothing is in a schema that the API server would refuse or ignore."""
    for path, node in nodes.items():
        assert not FORBIDDEN & node.keys(), path
        assert "additionalProperties" not in node or "properties" not in node, path
        if "anyOf" in node:
            assert node["x-kubernetes-int-or-string"], path
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        else:
            assert node["type"] in {"object", "array", "string", "integer", "boolean"}, path


def test_every_field_is_described(nodes):
    """`kubectl explain` says something about every field, in a sentence."""
    for path, node in nodes.items():
        if path.split(".")[0] == "metadata" or path.endswith("[]"):
            continue
        assert node.get("description", "").endswith("."), path


def test_no_object_is_silently_emptied(nodes):
    """Each object has fields, takes any key, or keeps what it does not know."""
    for path, node in nodes.items():
        if node.get("type") == "object" and path != "":
            assert node.keys() & {"properties", "additionalProperties", FREE}, path


def test_unknown_fields_are_kept_only_in_parts_of_a_pod(nodes):
    """Everything that is ours is typed."""
    free = [path for path, node in nodes.items() if FREE in node]
    assert all(path.startswith("spec.podTemplate.") for path in free)


def test_everything_is_bounded(nodes):
    """The API server can tell what checking costs at most."""
    for path, node in nodes.items():
        if path in {"apiVersion", "kind"}:
            continue
        match node.get("type"):
            case "string":
                assert "maxLength" in node or "enum" in node, path
            case "array":
                assert "maxItems" in node, path
            case "object" if "additionalProperties" in node:
                assert "maxProperties" in node, path


def test_lists_say_how_they_are_merged(nodes):
    """Two appliers of one object do not tear each other's lists apart."""
    for path, node in nodes.items():
        if node.get("type") != "array":
            continue
        kind = node["x-kubernetes-list-type"]
        assert kind in {"atomic", "set", "map"}, path
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert kind == "map", path
            assert key in node["items"]["required"], path


def test_rules_point_to_fields_that_exist(nodes, schemas):
    """The field that the API server names in an error is there."""
    for path, rule in rules(nodes[""], ""):
        node = nodes[path]
        for part in rule.get("fieldPath", "").split(".")[1:]:
            node = node["properties"][part]
        assert not rule["message"].endswith("."), rule


def test_no_status_is_refused_for_what_it_lacks(nodes):
    """A status that knows little can be written; only a list's key is needed."""
    for path, node in nodes.items():
        if path.split(".")[0] == "status" and "required" in node:
            assert path.endswith("[]"), path
            assert len(node["required"]) == 1, path


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_defaults_are_those_of_the_structs(api_server, make, definition):
    """What the API server fills in is what the code takes a missing field for."""
    spec = make(definition.kind, {})["spec"]
    filled = api_server.default(make(definition.kind, {}))["spec"]
    assert msgspec.convert(filled, definition.spec) == msgspec.convert(spec, definition.spec)
    shown = msgspec.to_builtins(msgspec.convert(spec, definition.spec))
    assert filled == _without_nothing(shown)


def _without_nothing(value: Any) -> Any:
    """Take out what is None or empty: the schema states no default for it."""
    if isinstance(value, dict):
        kept = {key: _without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, (), [], {})}
    return [_without_nothing(item) for item in value] if isinstance(value, list | tuple) else value


def test_defaults_are_whole(nodes):
    """A default object lists all its defaults: the API server checks rules on it as it stands."""
    for path, node in nodes.items():
        if isinstance(node.get("default"), dict):
            whole = {name for name, child in node["properties"].items() if "default" in child}
            assert node["default"].keys() == whole, path


def test_field_without_description_is_refused():
    """Nobody can add a field that `kubectl explain` says nothing about."""

    class Bare(msgspec.Struct):
        """A struct."""

        size: int = 1

    with pytest.raises(TypeError, match="size: every field needs a description"):
        struct_schema(Bare)


def test_type_that_no_structural_schema_can_say_is_refused():
    """A field of two types is refused when the schema is made, not by the API server."""

    class Either(msgspec.Struct):
        """A struct."""

        size: Annotated[int | str, Meta(description="Either.")] = 1

    with pytest.raises(TypeError, match="several types"):
        struct_schema(Either)


def test_default_beside_the_fields_is_refused():
    """A default object that differs from its fields' defaults could not be shown."""

    class Inner(msgspec.Struct, frozen=True):
        """A struct."""

        size: Annotated[int, Meta(description="Size.")] = 1

    class Outer(msgspec.Struct, frozen=True):
        """A struct."""

        inner: Annotated[Inner, Meta(description="Inner.")] = Inner(size=2)

    with pytest.raises(TypeError, match="defaults belong into the fields"):
        struct_schema(Outer)


def test_status_structs_hold_nothing_that_the_schema_drops(schemas):
    """Every field of a status is in the schema, so none is pruned when it is written."""
    for definition in DEFINITIONS:
        info = inspect.type_info(definition.status)
        assert isinstance(info, inspect.StructType)
        names = {field.encode_name for field in info.fields}
        assert names == schemas[definition.kind]["properties"]["status"]["properties"].keys()
