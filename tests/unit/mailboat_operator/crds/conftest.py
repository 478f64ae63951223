"""A small API server for custom resources: defaults, the schema, and the CEL rules.

The rules run in Google's own CEL; only `quantity()`, Kubernetes' addition, is defined here.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from mailboat_operator.crds.definitions import custom_resource_definitions
from mailboat_operator.crds.reference import EXAMPLES

ROOT = Path(__file__).resolve().parents[4]
CASES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("rule_cases.yaml").read_text(encoding="ascii")
)
UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def thousandths(text: str) -> int:
    """Return a quantity exactly, in thousandths of a byte, or fail as `quantity()` does."""
    number = text.rstrip("kKMGTPi")
    return int(Decimal(number) * UNITS.get(text.removeprefix(number), 1) * 1000)


@functools.cache
def environment() -> cel.Env:
    """Return CEL as Kubernetes has it, as far as the rules use it."""
    kind = cel.Type

    def overload(
        name: str, arguments: int, member: bool, body: Callable[..., float], result: Any = kind.INT
    ) -> Any:
        types = [kind.INT] * arguments if member else [kind.STRING]
        return cel.FunctionDecl(name, [cel.Overload(name, result, types, member, body)])

    return cel.NewEnv(
        variables={"self": kind.DYN, "oldSelf": kind.DYN},
        extensions=[ext_strings.ExtStrings()],
        functions=[
            overload("quantity", 1, False, thousandths),
            overload("asApproximateFloat", 1, True, lambda one: one / 1000, kind.DOUBLE),
            overload("add", 2, True, lambda one, other: one + other),
            overload("compareTo", 2, True, lambda one, other: (one > other) - (one < other)),
        ],
    )


@functools.cache
def compiled(rule: str) -> cel.Expression:
    """Return a rule ready to run; a rule that is no CEL fails here."""
    return environment().compile(rule)


@dataclass(frozen=True)
class ApiServer:
    """Says what a Kubernetes API server would say of an object."""

    schemas: dict[str, dict[str, Any]]

    def default(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the object with the schema's defaults, as it would be stored."""
        stored = copy.deepcopy(manifest)
        _default(self.schemas[manifest["kind"]], stored)
        return stored

    def refusals(
        self, manifest: dict[str, Any], before: dict[str, Any] | None = None
    ) -> dict[str, str]:
        """Return every rule or limit that the object breaks, with what the user would read."""
        schema, stored = self.schemas[manifest["kind"]], self.default(manifest)
        wrong = {
            f"{'.'.join(map(str, error.absolute_path))}: {error.validator}": (
                f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
            )
            for error in jsonschema.Draft7Validator(schema).iter_errors(stored)
        }
        if wrong:  # As in Kubernetes, rules are for objects whose fields are right.
            return wrong
        return dict(_broken_rules(schema, stored, self.default(before) if before else None))


def _default(schema: dict[str, Any], value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _default(schema.get("items", {}), item)
    if not isinstance(value, dict):
        return
    for name, child in schema.get("properties", {}).items():
        if name not in value and "default" in child:
            value[name] = copy.deepcopy(child["default"])
        if name in value:
            _default(child, value[name])


def _broken_rules(schema: dict[str, Any], value: Any, before: Any) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"] and before is None:
            continue
        verdict = compiled(rule["rule"]).eval(data={"self": value, "oldSelf": before})
        assert verdict.type() == cel.Type.BOOL, f"{rule['rule']}: {verdict.value()}"
        if not verdict.value():
            yield rule["rule"], rule["message"]
    if isinstance(value, list):
        for item in value:
            yield from _broken_rules(schema.get("items", {}), item, None)
    if not isinstance(value, dict):
        return
    for name, child in schema.get("properties", {}).items():
        if name in value:
            old = before.get(name) if isinstance(before, dict) else None
            yield from _broken_rules(child, value[name], old)


def build(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest object of a kind with some fields set, or removed where None."""
    manifest = copy.deepcopy(EXAMPLES[kind])
    for path, value in fields.items():
        *parents, last = path.split(".")
        node = manifest
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return manifest


@pytest.fixture(scope="session")
def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each kind."""
    return {
        definition["spec"]["names"]["kind"]: definition["spec"]["versions"][0]["schema"][
            "openAPIV3Schema"
        ]
        for definition in custom_resource_definitions()
    }


@pytest.fixture(scope="session")
def api_server(schemas: dict[str, dict[str, Any]]) -> ApiServer:
    """What checks objects as the API server does."""
    return ApiServer(schemas)


@pytest.fixture(scope="session")
def make() -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Makes the smallest object of a kind with some fields set."""
    return build


@pytest.fixture(scope="session")
def cases() -> list[dict[str, Any]]:
    """What must be taken and what refused."""
    return CASES


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return ROOT


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each case of rule_cases.yaml to the tests that ask for one."""
    if "case" in metafunc.fixturenames:
        names = [f"{case['kind']} {case.get('before', '')} {case['set']}" for case in CASES]
        metafunc.parametrize("case", CASES, ids=names)
