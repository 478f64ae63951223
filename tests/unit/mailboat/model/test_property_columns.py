"""Properties of a whole batch, cut into columns."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailboat.model import property_columns
from mailboat.model.properties import decode_properties
from mailboat.model.property_columns import PropertyColumns, read_property_columns

_NAMES = ("KEYS", "UNIQ_KEY", "WAIT", "TAGS", "color", "a+b")
_values = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))


@pytest.fixture(autouse=True, scope="module")
def _at_once() -> Iterator[None]:
    """Let patterns be made without a rest in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(property_columns, "_REST_FACTOR", 0)
        yield


def _read(texts: list[bytes]) -> PropertyColumns | None:
    # Names that were never seen before are not read.
    read_property_columns(texts)
    return read_property_columns(texts)


@settings(max_examples=200)
@given(
    names=st.permutations(_NAMES).flatmap(lambda names: st.integers(1, 6).map(lambda n: names[:n])),
    rows=st.lists(st.lists(_values, min_size=6, max_size=6), min_size=1, max_size=5),
    is_closed=st.booleans(),
)
def test_columns_are_the_properties_of_each_message(
    names: list[str], rows: list[list[str]], is_closed: bool
) -> None:
    """Values and what is left of each text are those of the message at their place."""
    rows = [
        ["true" if n == "WAIT" else v for n, v in zip(names, row, strict=False)] for row in rows
    ]
    entries = [
        [f"{name}\x01{value}\x02".encode() for name, value in zip(names, row, strict=True)]
        for row in rows
    ]
    texts = [b"".join(row) for row in entries]
    columns = _read(texts if is_closed else [text[:-1] for text in texts])
    assert columns is not None
    assert columns.names == tuple(name.encode() for name in names)
    assert columns.wait == (b"true" if "WAIT" in names else None)
    for row, before, after, size in zip(
        entries, columns.befores, columns.afters, columns.sizes, strict=True
    ):
        assert before + after == b"".join(e for e in row if not e.startswith(b"WAIT\x01"))
        assert size == len(before) + len(after)
    for name, column in (
        ("KEYS", columns.keys),
        ("UNIQ_KEY", columns.unique_keys),
        ("TAGS", columns.tags),
    ):
        at = names.index(name) if name in names else None
        assert list(column) == ([row[at].encode() for row in rows] if at is not None else [])


@settings(max_examples=1000)
@given(
    st.lists(
        st.lists(st.sampled_from(["A", "B", "\x01", "\x02", "A\x01x\x02", "B\x01y\x02"])).map(
            lambda pieces: "".join(pieces).encode()
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_read_has_one_shape(texts: list[bytes]) -> None:
    """Texts that are cut in the wrong place, or only look like a table together, are no table."""
    columns = _read(texts)
    if columns is None:
        return
    closed = texts[0].endswith(b"\x02")
    for text in texts:
        assert text.endswith(b"\x02") == closed
        entries = text.removesuffix(b"\x02").split(b"\x02")
        assert [entry.count(b"\x01") for entry in entries] == [1] * len(columns.names)
        assert tuple(entry.partition(b"\x01")[0] for entry in entries) == columns.names


@pytest.mark.parametrize(
    "texts",
    [
        [b""],
        [b"k\x01v\x02", b""],
        [b"k\x01v\x02", b"k\x01v"],
        [b"k\x01v", b"k\x01v\x02"],
        [b"k\x01v\x02", b"l\x01v\x02"],
        [b"k\x01v\x02l\x01v\x02", b"l\x01v\x02k\x01v\x02"],
        [b"k\x01v\x02k\x01v\x02", b""],
        [b"k\x01v\x02", b"k\x01v\x02k\x01v\x02"],
        [b"k\x01v\x02k", b"\x01v\x02"],
        [b"k\x01v\x02", b"k\x01v\x01\x02"],
        [b"k\x01v\x02k\x01v\x02"],
        [b"k\x01v\x02", b"\x02k\x01v\x02"],
        [b"k\x01v\x02", b"k\x01v\x02\x02"],
        [b"k\x01v\x02", b"k\x01\xff\x02"],
        [b"k\x01v\x02WAIT\x01true\x02", b"k\x01v\x02WAIT\x01false\x02"],
        [b"k", b"\x01k"],
        [b"k\x01v\x02WAIT\x01true\x02", b"k\x01v\x02WAIT\x01null\x02"],
        # As many rows as texts, but one lies in two texts and two lie in one.
        [
            b"k\x01v\x02l\x01w\x02",
            b"k\x01v",
            b"l\x01w\x02",
            b"k\x01v\x02l\x01w\x02\x02k\x01v\x02l\x01w\x02",
        ],
    ],
)
def test_what_is_no_table(texts: list[bytes]) -> None:
    """Other names, another order, broken separators, bytes that are no text: one by one instead."""
    assert _read(texts) is None


def test_names_are_learned_before_they_are_read() -> None:
    """The first batch with new names is no table: a pattern costs more than one batch gains."""
    texts = [b"never-seen-elsewhere\x01v\x02"]
    assert read_property_columns(texts) is None
    columns = read_property_columns(texts)
    assert columns is not None
    assert decode_properties(columns.befores[0].decode()) == {"never-seen-elsewhere": "v"}


def test_many_or_long_names_are_not_remembered() -> None:
    """What is kept for ever new names is bounded by their number, so each has to be small."""
    many = b"".join(b"%d\x01v\x02" % number for number in range(65))
    long = b"n" * 2049 + b"\x01v\x02"
    waiting = b"WAIT\x01" + b"w" * 2049 + b"\x02"
    for text in (many, long, waiting):
        known = len(property_columns._patterns._seen)
        assert _read([text]) is None
        assert len(property_columns._patterns._seen) == known


def test_patterns_are_few_and_made_with_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used last are kept; the next one waits, and the batch is read one by one."""
    made: list[tuple[bytes, ...]] = []

    def make(names: tuple[bytes, ...], _wait: bytes | None) -> re.Pattern[bytes] | None:
        made.append(names)
        return None

    monkeypatch.setattr(property_columns, "_pattern", make)
    patterns = property_columns._Patterns()
    shapes = [((b"%d" % number,), None) for number in range(258)]
    for shape in (*shapes[:256], shapes[0], *shapes[256:], shapes[0]):
        patterns.find(shape)
        patterns.find(shape)
    assert len(made) == 258
    assert len(patterns._made) == 256
    assert shapes[0] in patterns._made
    monkeypatch.setattr(property_columns, "_REST_FACTOR", 10**9)
    for shape in [((b"late %d" % number,), None) for number in range(2)]:
        patterns.find(shape)
        patterns.find(shape)
    assert made[258:] == [(b"late 0",)]
