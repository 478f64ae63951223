"""The stub says what the compiled module has: the same names, parameters and defaults."""

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.core

FOLDER = Path(__file__).resolve().parents[3] / "core" / "python" / "mailboat_core"
Signature = list[tuple[str, Any, str | None]]
"""Name, kind and default of each parameter; the default as source text, or None."""


@pytest.fixture
def native() -> ModuleType:
    """Return the compiled module."""
    return importlib.import_module("mailboat_core._native")


def stub_signature(function: ast.FunctionDef) -> Signature:
    """Return the parameters of a function or method of the stub."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(named) - len(arguments.defaults)) + [*arguments.defaults]
    kinds = inspect.Parameter
    found: Signature = []
    for place, (argument, default) in enumerate(zip(named, defaults, strict=True)):
        is_positional = place < len(arguments.posonlyargs)
        kind = kinds.POSITIONAL_ONLY if is_positional else kinds.POSITIONAL_OR_KEYWORD
        found.append((argument.arg, kind, None if default is None else ast.unparse(default)))
    if arguments.vararg is not None:
        found.append((arguments.vararg.arg, kinds.VAR_POSITIONAL, None))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        text = None if default is None else ast.unparse(default)
        found.append((argument.arg, kinds.KEYWORD_ONLY, text))
    if arguments.kwarg is not None:
        found.append((arguments.kwarg.arg, kinds.VAR_KEYWORD, None))
    return found


def compiled_signature(function: Any) -> Signature:
    """Return the parameters of a compiled function or class, read from its `__text_signature__`."""
    return [
        (name, item.kind, None if item.default is item.empty else repr(item.default))
        for name, item in inspect.signature(function).parameters.items()
    ]


def stub_table(body: list[ast.stmt], prefix: str = "") -> dict[str, Signature | str]:
    """Return what a stub declares: signatures of functions and methods, words for the rest."""
    table: dict[str, Signature | str] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            members = stub_table(node.body, f"{node.name}.")
            start = members.pop(f"{node.name}.__new__", members.pop(f"{node.name}.__init__", None))
            table[node.name] = "class" if start is None else start[1:]
            table |= members
        elif isinstance(node, ast.FunctionDef):
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            signature = stub_signature(node)
            if "property" in marks:
                table[prefix + node.name] = "attribute"
            elif not any(mark.endswith(".setter") for mark in marks):
                table[prefix + node.name] = signature
        elif isinstance(node, ast.AnnAssign):
            table[prefix + ast.unparse(node.target)] = "attribute"
    return {name: item for name, item in table.items() if is_public(name)}


def compiled_table(members: dict[str, Any], prefix: str = "") -> dict[str, Signature | str]:
    """Return what a compiled module or class has, in the words of `stub_table`."""
    table: dict[str, Signature | str] = {}
    for name, member in members.items():
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__ if hasattr(member, "__func__") else member
        if inspect.isclass(member):
            has_start = member.__text_signature__ is not None
            table[name] = compiled_signature(member) if has_start else "class"
            table |= compiled_table(dict(vars(member)), f"{name}.")
        elif callable(member):
            table[prefix + name] = compiled_signature(member)
        else:
            table[prefix + name] = "attribute"
    return {name: item for name, item in table.items() if is_public(name)}


def is_public(name: str) -> bool:
    """Whether no part of a dotted name begins with an underscore."""
    return not any(part.startswith("_") for part in name.split("."))


def test_the_stub_declares_what_is_compiled_and_nothing_else(native: ModuleType) -> None:
    """mypy believes the stub; a call that it allows must not fail at run time."""
    stub = stub_table(ast.parse((FOLDER / "_native.pyi").read_text()).body)
    compiled = compiled_table(dict(vars(native)))
    assert stub == compiled
    assert compiled


def test_the_package_gives_all_that_is_compiled(native: ModuleType) -> None:
    """The broker knows `mailboat_core`, not its inside."""
    package = importlib.import_module("mailboat_core")
    public = {name for name in vars(native) if is_public(name)}
    assert set(package.__all__) == public | {"__version__"}
    for name in public:
        assert getattr(package, name) is getattr(native, name)


@pytest.mark.parametrize(
    "planted",
    [
        "def body_crc(data: bytes) -> int: ...",
        "def body_crc(body: bytes, start: int) -> int: ...",
        "def body_crc(body: bytes, /) -> int: ...",
        "def body_crc(body: bytes = b'') -> int: ...",
        "def body_crc(body: bytes) -> int: ...\ndef other() -> int: ...",
        "class body_crc: ...",
        "body_crc: int",
    ],
)
def test_a_stub_that_drifted_is_seen(planted: str, native: ModuleType) -> None:
    """Another name, parameter, kind or default, one too many, or another sort of thing."""
    compiled = compiled_table({"body_crc": vars(native)["body_crc"]})
    assert stub_table(ast.parse(planted).body) != compiled
