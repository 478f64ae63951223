"""From the structs to a structural OpenAPI v3 schema, as a CustomResourceDefinition holds it.

Kubernetes wants every node typed, no `$ref`, bounds on all that a rule looks at (it estimates what
checking costs), and a merge key where a list is more than a value. What msgspec's types cannot say
stands in a field's `Meta(extra=...)`: `schema` (the schema of a piece that is handed through),
`rules` (rules about the value itself), `list_map_keys` and `list_type`.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import inspect

from mailboat_operator.crds.common import Rule

Schema: TypeAlias = dict[str, Any]

_INT32_MAX: Final = (1 << 31) - 1
_NAME_MAX: Final = 253
"""Longest name of any Kubernetes object; tells the API server what a rule about it costs."""


def resource_schema(resource: type[Any], spec: type[Any], status: type[Any]) -> Schema:
    """Return the schema of a whole custom resource.

    Args:
        resource: The class of the resource; its docstring describes it, its RULES check it.
        spec: The struct of its spec.
        status: The struct of its status.
    """
    names = ("name", "generateName")
    spec_schema = struct_schema(spec)
    if "required" not in spec_schema:
        spec_schema["default"] = _defaults(spec)
    schema: Schema = {
        "type": "object",
        "description": _first_paragraph(resource),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this kind's schema."},
            "kind": {"type": "string", "description": "Kind of the object."},
            "metadata": {
                "type": "object",
                "properties": {key: {"type": "string", "maxLength": _NAME_MAX} for key in names},
            },
            "spec": spec_schema,
            "status": struct_schema(status),
        },
    }
    return _with_rules(schema, resource.RULES)


def struct_schema(struct: type[Any], description: str | None = None) -> Schema:
    """Return the schema of a struct with all that is in it."""
    info = inspect.type_info(struct)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{struct} is no msgspec.Struct")
    schema: Schema = {"type": "object", "description": description or _first_paragraph(struct)}
    if required := [field.encode_name for field in info.fields if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _field_schema(field) for field in info.fields}
    return _with_rules(schema, getattr(struct, "RULES", ()))


def default_of(field: inspect.Field) -> Any:
    """Return the default that the schema states for a field, or NODEFAULT for none.

    Nothing, an empty list and an empty map are the same to a reader, and stay out of the object. An
    object's default is written out, because the API server checks rules on it as it stands.
    """
    default = field.default
    if isinstance(default, msgspec.Struct):
        if default != type(default)():
            raise TypeError(f"{field.encode_name}: defaults belong into the fields of the struct")
        return _defaults(type(default))
    if default is None or default == () or field.default_factory is not msgspec.NODEFAULT:
        return msgspec.NODEFAULT
    return list(default) if isinstance(default, tuple) else default


def _defaults(struct: type[msgspec.Struct]) -> dict[str, Any]:
    fields = cast(inspect.StructType, inspect.type_info(struct)).fields
    defaults = {field.encode_name: default_of(field) for field in fields}
    return {key: value for key, value in defaults.items() if value is not msgspec.NODEFAULT}


def _field_schema(field: inspect.Field) -> Schema:
    node, notes, extra = _unwrap(field.type)
    description = notes.get("description")
    if description is None:
        raise TypeError(f"{field.encode_name}: every field needs a description")
    schema = {**_node_schema(node, extra), **_format(notes)}
    default = default_of(field)
    head: Schema = {"type": schema.pop("type"), "description": description}
    if default is not msgspec.NODEFAULT:
        head["default"] = default
    schema.pop("description", None)
    return _with_rules({**head, **schema}, extra.get("rules", ()))


def _unwrap(node: inspect.Type) -> tuple[inspect.Type, dict[str, Any], Mapping[str, Any]]:
    """Take off what msgspec wraps around a type: notes, and `| None` for what may be left out."""
    notes: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    while True:
        if isinstance(node, inspect.Metadata):
            notes = {**(node.extra_json_schema or {}), **notes}
            extra = {**(node.extra or {}), **extra}
            node = node.type
        elif isinstance(node, inspect.UnionType):
            members = [item for item in node.types if not isinstance(item, inspect.NoneType)]
            if len(members) != 1:
                raise TypeError(f"{node} has several types, which a structural schema cannot say")
            node = members[0]
        else:
            return node, notes, extra


def _node_schema(node: inspect.Type, extra: Mapping[str, Any]) -> Schema:
    if "schema" in extra:
        return {**extra["schema"], **_count_limits(node)}
    match node:
        case inspect.StructType():
            return struct_schema(node.cls)
        case inspect.StrType():
            return _string_schema(node)
        case inspect.IntType():
            return _integer_schema(node)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(node.values)}
        case inspect.DictType():
            values = _item_schema(node.value_type)
            return {"type": "object", **_count_limits(node), "additionalProperties": values}
        case inspect.VarTupleType():
            return {**_array_head(node, extra), "items": _item_schema(node.item_type)}
        case _:
            raise TypeError(f"{node} has no structural schema")


def _item_schema(item: inspect.Type) -> Schema:
    node, notes, extra = _unwrap(item)
    return {**_node_schema(node, extra), **_format(notes)}


def _format(notes: Mapping[str, Any]) -> Schema:
    return _present({"format": notes.get("format")})


def _string_schema(node: inspect.StrType) -> Schema:
    limits = {
        "minLength": node.min_length,
        "maxLength": node.max_length,
        "pattern": node.pattern,
    }
    return {"type": "string", **_present(limits)}


def _integer_schema(node: inspect.IntType) -> Schema:
    wide = node.le is None or node.le > _INT32_MAX
    limits = {"minimum": node.ge, "maximum": node.le}
    return {"type": "integer", "format": "int64" if wide else "int32", **_present(limits)}


def _array_head(node: inspect.VarTupleType, extra: Mapping[str, Any]) -> Schema:
    keys = extra.get("list_map_keys")
    kind = "map" if keys else extra.get("list_type", "atomic")
    head: Schema = {"type": "array", **_count_limits(node), "x-kubernetes-list-type": kind}
    if keys:
        head["x-kubernetes-list-map-keys"] = list(keys)
    return head


def _count_limits(node: inspect.Type) -> Schema:
    match node:
        case inspect.DictType():
            return _present({"minProperties": node.min_length, "maxProperties": node.max_length})
        case inspect.ListType() | inspect.VarTupleType():
            return _present({"minItems": node.min_length, "maxItems": node.max_length})
        case _:
            return {}


def _present(limits: Mapping[str, Any]) -> Schema:
    return {key: value for key, value in limits.items() if value is not None}


def _with_rules(schema: Schema, rules: tuple[Rule, ...]) -> Schema:
    if not rules:
        return schema
    return {**schema, "x-kubernetes-validations": [_validation(rule) for rule in rules]}


def _validation(rule: Rule) -> Schema:
    validation = {"rule": rule.cel, "message": rule.message}
    if rule.field is not None:
        validation["fieldPath"] = rule.field
    return validation


def _first_paragraph(documented: type[Any]) -> str:
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())
