"""The field reference `docs/crds.md`, written from the same schema as the CRDs."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from mailboat_operator.crds.common import API_VERSION, DELETE_WINDOW_PATTERN
from mailboat_operator.crds.definitions import DEFINITIONS, Definition
from mailboat_operator.crds.quantity import DURATION_PATTERN, QUANTITY_PATTERN, STEP_PATTERN
from mailboat_operator.crds.schema import Schema, resource_schema

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "Broker": {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders"},
        "spec": {"nameServers": {"ref": "ns"}, "storage": {"size": "20Gi"}},
    },
    "NameServer": {
        "apiVersion": API_VERSION,
        "kind": "NameServer",
        "metadata": {"name": "ns"},
        "spec": {"replicas": 2},
    },
    "Topic": {
        "apiVersion": API_VERSION,
        "kind": "Topic",
        "metadata": {"name": "payments"},
        "spec": {"brokerRef": "orders", "queues": {"read": 8, "write": 8}},
    },
    "User": {
        "apiVersion": API_VERSION,
        "kind": "User",
        "metadata": {"name": "till"},
        "spec": {
            "brokerRef": "orders",
            "acls": [{"resource": {"type": "Topic", "name": "payments"}, "actions": ["Pub"]}],
        },
    },
}
"""The smallest useful object of each kind."""

_NAME: Final = "metadata.name"
"""What the rules of a whole object are about."""

_INTRODUCTION: Final = f"""# Custom resources

All are in `{API_VERSION}` and namespaced; `kubectl get messaging` lists them, `kubectl explain`
shows what is below. A field without a default may be left out unless it says *required*. Sizes are
quantities without exponent (`512Mi`, `100Gi`), durations are hours, minutes and seconds (`6h30m`).
The rules are checked by the API server: what breaks one is refused with its sentence.

This file is made by `make crds`, as are the CustomResourceDefinitions in `charts/mailboat-crds`.
"""
_WORDS: Final = {
    QUANTITY_PATTERN: "size",
    DURATION_PATTERN: "duration",
    STEP_PATTERN: "percentage or size",
    DELETE_WINDOW_PATTERN: "HH:00-HH:00",
}


def reference() -> str:
    """Return the whole reference as Markdown."""
    return "\n".join([_INTRODUCTION, *(_kind(definition) for definition in DEFINITIONS)])


def leaves(schema: Schema, path: str, required: bool = False) -> Iterator[tuple[str, Schema, bool]]:
    """Yield every field below a schema: its path, its own schema, whether it must be given."""
    items = schema.get("items", {})
    if path:
        yield path, schema, required
    inner, prefix = (items, f"{path}[]") if items else (schema, path)
    for name, child in inner.get("properties", {}).items():
        below = f"{prefix}.{name}" if prefix else name
        yield from leaves(child, below, name in inner.get("required", ()))


def rules(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield every rule of a schema and of all below it, with the path of what it is about."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule
    for name, child in schema.get("properties", {}).items():
        yield from rules(child, f"{path}.{name}" if path else name)


def _kind(definition: Definition) -> str:
    schema = resource_schema(definition.resource, definition.spec, definition.status)
    example = yaml.safe_dump(EXAMPLES[definition.kind], sort_keys=False).strip()
    scaled = ""
    if definition.scale is not None:
        scaled = f" `kubectl scale {definition.short_name}/NAME` sets `{definition.scale[0][1:]}`."
    parts = [
        f"## {definition.kind}",
        f"{schema['description']} Short name `{definition.short_name}`.{scaled}",
        f"```yaml\n{example}\n```",
        _table(schema["properties"]["spec"], "spec"),
        "Rules:",
        "\n".join(f"- `{path or _NAME}`: {_rule(rule)}" for path, rule in rules(schema, "")),
        f"### Status of a {definition.kind}",
        _table(schema["properties"]["status"], "status"),
    ]
    return "\n\n".join(parts) + "\n"


def _table(schema: Schema, path: str) -> str:
    lines = ["| Field | Type | Default | Description |", "| --- | --- | --- | --- |"]
    for name, field, required in leaves(schema, ""):
        cells = (
            f"`{path}.{name}`",
            _type(field),
            "*required*" if required else _default(field),
            field["description"].replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _type(field: Schema) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    match field["type"]:
        case "integer":
            low, high = field.get("minimum"), field.get("maximum")
            if high is None:
                return "integer" if low is None else f"integer, at least {low}"
            return f"integer, {low} to {high}"
        case "array":
            return f"list of {_type(field['items'])}"
        case "object" if "additionalProperties" in field:
            return "map"
        case "string":
            return _WORDS.get(field.get("pattern", ""), str(field.get("format", "string")))
        case "boolean" | "object":
            return str(field["type"])
        case other:
            raise TypeError(f"{other} has no word")


def _default(field: Schema) -> str:
    default = field.get("default")
    if default is None or isinstance(default, dict):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{default}`"


def _rule(rule: Schema) -> str:
    message: str = rule["message"]
    return message if "oldSelf" not in rule["rule"] else f"{message} (on a change)"
