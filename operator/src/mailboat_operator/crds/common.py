"""What the custom resources share: metadata, the rules of a field, and the way from a manifest."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from mailboat_operator.crds.quantity import (
    DURATION_HINT,
    DURATION_PATTERN,
    QUANTITY_HINT,
    QUANTITY_PATTERN,
    STEP_HINT,
    STEP_PATTERN,
)
from mailboat_operator.errors import InvalidResourceError

GROUP: Final = "mailboat.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

NAME_MAX_LENGTH: Final = 48
"""Longest name of a resource that has a StatefulSet: its pods carry `<name>-g<group>-<10 digits>`
in a label, which ends at 63."""

ONE_LINE_PATTERN: Final = r"^[^\r\n]*$"
_PORT_PATTERN: Final = (
    r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
ADDRESS_PATTERN: Final = rf"^[^:;,\s]{{1,253}}:{_PORT_PATTERN}$"
IMAGE_PATTERN: Final = r"^[^\s]+$"
RESOURCE_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
ACCESS_KEY_PATTERN: Final = r"^[-._@a-zA-Z0-9]+$"
AUDIENCE_PATTERN: Final = r"^[-._:/@a-zA-Z0-9]+$"
KIND_PATTERN: Final = r"^[A-Z][a-zA-Z0-9]*$"
SECRET_KEY_PATTERN: Final = r"^[-._a-zA-Z0-9]+$"  # noqa: S105 - a pattern
TOPIC_NAME_PATTERN: Final = r"^[%|a-zA-Z0-9_-]+$"
DELETE_WINDOW_PATTERN: Final = r"^([01][0-9]|2[0-3]):00-([01][0-9]|2[0-3]|24):00$"

SpecT = TypeVar("SpecT")

_HINTS: Final = {
    QUANTITY_PATTERN: QUANTITY_HINT,
    DURATION_PATTERN: DURATION_HINT,
    STEP_PATTERN: STEP_HINT,
    ONE_LINE_PATTERN: "must be one line of text",
    ADDRESS_PATTERN: "must be host:port, the port from 1 to 65535",
    IMAGE_PATTERN: "must be the name of an image, without spaces",
    RESOURCE_NAME_PATTERN: "must be the name of a Kubernetes object: a-z 0-9 - .",
    ACCESS_KEY_PATTERN: "may only hold the characters a-z A-Z 0-9 - . _ @",
    AUDIENCE_PATTERN: "may only hold the characters a-z A-Z 0-9 - . _ : / @",
    KIND_PATTERN: "must be a kind of the API, such as Issuer",
    SECRET_KEY_PATTERN: "must be the key of a Secret: a-z A-Z 0-9 - . _",
    TOPIC_NAME_PATTERN: "may only hold the characters % | a-z A-Z 0-9 _ -",
    DELETE_WINDOW_PATTERN: "must be whole hours of the day such as 04:00-06:00",
}
_MSGSPEC: Final = re.compile(r"(?P<text>.*?)(?: - at `(?P<path>[^`]*)`)?", re.DOTALL)
_MATCHING: Final = re.compile(r"Expected `str` matching regex '(?P<pattern>.*)'", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about several fields, as the API server checks it (`x-kubernetes-validations`).

    `parse_*` checks the same again, except what compares with the value before a change.
    """

    cel: str
    message: str
    field: str | None = None
    """Which field the API server's error names (`.name`); None names the object itself."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The part of an object's metadata that the operator looks at."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()


class Object(msgspec.Struct, Generic[SpecT], frozen=True):
    """A custom resource: what Kubernetes knows of it, what its user wants, what was seen last."""

    KIND: ClassVar[str] = ""

    metadata: Metadata
    spec: SpecT
    status: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The namespace that the resource is in."""
        return self.metadata.namespace


ObjectT = TypeVar("ObjectT", bound=Object[Any])


def parse_object(kind: type[ObjectT], spec: type[Any], manifest: Mapping[str, Any]) -> ObjectT:
    """Turn a manifest into a typed resource; fields that are not known are left out.

    Args:
        kind: The class of the resource.
        spec: The class of its spec.
        manifest: The object as the API server's JSON has it.

    Raises:
        InvalidResourceError: a field is missing, of a wrong type, or breaks a rule.
    """
    metadata_document = manifest.get("metadata") or {}
    resource = _describe(kind.KIND, metadata_document)
    metadata = _convert(metadata_document, Metadata, "metadata", resource)
    return kind(
        metadata=metadata,
        spec=_convert(manifest.get("spec") or {}, spec, "spec", resource),
        status=dict(manifest.get("status") or {}),
    )


def check_child_name(resource: Object[Any]) -> None:
    """Refuse a name that the resource's Services and StatefulSets could not carry.

    Raises:
        InvalidResourceError: too long, or not a DNS label that starts with a letter.
    """
    name = resource.metadata.name
    if len(name) <= NAME_MAX_LENGTH and _NAME.fullmatch(name):
        return
    raise InvalidResourceError(
        _describe(resource.KIND, {"namespace": resource.namespace, "name": name}),
        "metadata.name",
        f"must start with a letter, hold a-z 0-9 - only and have at most {NAME_MAX_LENGTH}"
        " characters, because Services and StatefulSets are named after it",
    )


def invalid(resource: Object[Any], field: str, reason: str) -> InvalidResourceError:
    """Make the error for a field of a resource that is parsed already."""
    names = {"namespace": resource.namespace, "name": resource.name}
    return InvalidResourceError(_describe(resource.KIND, names), field, reason)


def _describe(kind: str, metadata: Mapping[str, Any]) -> str:
    namespace, name = metadata.get("namespace"), metadata.get("name", "?")
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _convert(document: object, target: type[Any], root: str, resource: str) -> Any:
    try:
        return msgspec.convert(document, target)
    except msgspec.ValidationError as problem:
        parts = _MSGSPEC.fullmatch(str(problem))
        text, path = (parts["text"], parts["path"] or "$") if parts else (str(problem), "$")
        field, reason = _sentence(text, root + path.removeprefix("$").replace("[...]", "[]"))
        raise InvalidResourceError(resource, field, reason) from None


def _sentence(text: str, path: str) -> tuple[str, str]:
    """Turn what msgspec says into a field and what to do about it."""
    if missing := _MISSING.fullmatch(text):
        return f"{path}.{missing['field']}", "is missing; give it a value"
    if matching := _MATCHING.fullmatch(text):
        pattern = matching["pattern"].replace("\\\\", "\\")
        return path, _HINTS.get(pattern, f"must match {pattern}")
    if text.startswith("Expected"):
        return path, "expected" + text.removeprefix("Expected").replace("`", "")
    return path, text[:1].lower() + text[1:].replace("`", "")
