"""The stub says what the compiled module has: the same names, parameters and defaults."""

import ast
import importlib
import inspect
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.core

FOLDER = Path(__file__).resolve().parents[3] / "core" / "python" / "mailboat_core"
STARTS = ("__new__", "__init__")
"""What a stub calls the call of a class."""

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
    parameters = [*inspect.signature(function).parameters.values()]
    if inspect.ismethoddescriptor(function):
        parameters = parameters[1:]  # self
    return [
        # PyO3 writes `...` for a default that is no literal.
        (item.name, item.kind, None if item.default is item.empty else source(item.default))
        for item in parameters
    ]


def source(default: Any) -> str:
    """Return a default as the stub writes it."""
    return "..." if default is ... else repr(default)


def stub_table(body: list[ast.stmt], prefix: str = "") -> dict[str, Signature | str]:
    """Return what a stub declares: signatures of functions and methods, words for the rest."""
    table: dict[str, Signature | str] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            members = stub_table(node.body, f"{node.name}.")
            starts = [members.pop(f"{node.name}.{name}", None) for name in STARTS]
            table[node.name] = next((start for start in starts if start is not None), "class")
            table |= members
        elif isinstance(node, ast.FunctionDef):
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            signature = stub_signature(node)
            if "property" in marks:
                table[prefix + node.name] = "attribute"
            elif not any(mark.endswith(".setter") for mark in marks):
                has_self = prefix and "staticmethod" not in marks
                table[prefix + node.name] = signature[1:] if has_self else signature
        elif isinstance(node, ast.AnnAssign):
            table[prefix + ast.unparse(node.target)] = "attribute"
    return {name: item for name, item in table.items() if is_public(name)}


def compiled_table(owner: Any, prefix: str = "") -> dict[str, Signature | str]:
    """Return what a compiled module or class has, in the words of `stub_table`."""
    table: dict[str, Signature | str] = {}
    for name in vars(owner):
        member = getattr(owner, name)
        if not is_public(name):
            continue
        if inspect.isclass(member):
            has_start = member.__text_signature__ is not None
            table[name] = compiled_signature(member) if has_start else "class"
            table |= compiled_table(member, f"{name}.")
        elif callable(member):
            table[prefix + name] = compiled_signature(member)
        else:
            table[prefix + name] = "attribute"
    return table


def is_public(name: str) -> bool:
    """Whether no part of a dotted name begins with an underscore, or it is what makes an object."""
    first, _, member = name.partition(".")
    return not first.startswith("_") and (member in STARTS or not member.startswith("_"))


def test_the_stub_declares_what_is_compiled_and_nothing_else(native: ModuleType) -> None:
    """mypy believes the stub; a call that it allows must not fail at run time."""
    stub = stub_table(ast.parse((FOLDER / "_native.pyi").read_text()).body)
    compiled = compiled_table(native)
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
        "def decode_records(data: bytes) -> int: ...",
        "def decode_records(body: bytes, start: int) -> int: ...",
        "def decode_records(body: bytes, /) -> int: ...",
        "def decode_records(body: bytes = b'') -> int: ...",
        "def decode_records(body: bytes) -> int: ...\ndef other() -> int: ...",
        "class decode_records: ...",
        "decode_records: int",
    ],
)
def test_a_stub_that_drifted_is_seen(planted: str, native: ModuleType) -> None:
    """Another name, parameter, kind or default, one too many, or another sort of thing."""
    one = ModuleType("one")
    one.decode_records = native.decode_records
    compiled = compiled_table(one)
    assert stub_table(ast.parse("def decode_records(body: bytes) -> int: ...").body) == compiled
    assert stub_table(ast.parse(planted).body) != compiled


def test_classes_are_compared_member_by_member() -> None:
    """On a class of CPython that is made as PyO3 makes them: `self` is no parameter of its own."""
    holder = ModuleType("holder")
    holder.SimpleQueue = SimpleQueue
    compiled = compiled_table(holder)
    stub = """
class SimpleQueue:
    def __init__(self) -> None: ...
    def empty(self) -> bool: ...
    def get(self, block: bool = True, timeout: float | None = None) -> object: ...
    def get_nowait(self) -> object: ...
    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None: ...
    def put_nowait(self, item: object) -> None: ...
    def qsize(self) -> int: ...
"""
    assert stub_table(ast.parse(stub).body) == compiled
    for drifted in (
        stub.replace("item", "thing", 1),
        stub.replace("block: bool = True", "block: bool = False", 1),
        stub.replace("def qsize", "def size"),
        stub.replace("    def qsize", "    @property\n    def qsize"),
        stub.replace("__init__(self)", "__init__(self, size: int)"),
    ):
        assert drifted != stub
        assert stub_table(ast.parse(drifted).body) != compiled
