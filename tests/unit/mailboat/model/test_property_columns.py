"""Properties of a whole batch, cut into columns."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailboat.model.properties import decode_properties
from mailboat.model.property_columns import PropertyColumns, read_property_columns

_NAMES = ("KEYS", "UNIQ_KEY", "WAIT", "TAGS", "color", "a+b")
_values = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))


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
