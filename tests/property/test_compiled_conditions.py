"""Conditions in the core take what their definition in Python takes, whatever they look at."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailboat.errors import FilterSyntaxError
from mailboat.filtering.sql.sql_filter import SqlFilter, compile_sql
from mailboat.model import compiled
from mailboat.model.record import HEAD_V4, MAGIC_V1
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import UNIT, ConsumeQueue
from mailboat.store.lookup import GetResult, Lookup

if compiled.read_condition is None:
    pytest.skip("the compiled core is not installed", allow_module_level=True)

_NAMES = ["a", "b", "ab", "$"]
# Where classes, ranges and readings of numbers part, and texts that fold, compare or break oddly.
_TEXTS = st.one_of(
    st.sampled_from(
        [
            "0", "-0", "+0", "00", "5", "-5", "+5", "007", " 5", "5 ", "\x00\t5\n", "\xa05", "5L",
            "5.", ".5", "-.5", ".", "5.0", "5d", "5F", "5dd", "1e1", "1E+1", "1e-400", "-1e-400",
            "1e400", "-1e400", "0e99999999999", "1e", "e1", "NaN", "-NaN", "NaNd", "nan", "inf",
            "Infinity", "+Infinity", "-Infinity", "infinity", "0x10", "0x1p4", "-0X.8P-1f", "0x",
            "2147483647", "2147483648", "-2147483647", "-2147483648", "-2147483649", "+2147483648",
            "9007199254740993", "9223372036854775807", "9223372036854775808", "9" * 19, "9" * 20,
            "-9223372036854775807", "-9223372036854775808", "-9223372036854775809",
            "0" * 40 + "5", "9" * 65, "-" + "0" * 70, "0." + "1" * 62, "0." + "1" * 63,
            "1.7976931348623157e308", "1.7976931348623159e308", "4.9e-324", "2.4e-324",
            "0.1", "0.30000000000000004", "9.2233720368547758e18", "2.2250738585072011e-308",
            "true", "TRUE", "tRuE", "truE\u0307", "false", "True ", "it's", "", "-", "+", "+-5",
            "\u0663", "-\u0665", "5\u0665", "\U0001d7d9", "\u00e95", "e\u0301", "\u00e9", "\ufffd",
            "\u212a", "\uffff", "\U00010000", "ab", "abc", "bc", "x\u00e9y",
        ]
    ),
    st.text(max_size=6),
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.floats().map(repr),
    st.text("0123456789+-.eEdxX \u0665", max_size=12),
)  # fmt: skip
_BYTES = st.one_of(
    _TEXTS.map(str.encode),
    st.sampled_from(
        [b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"5\xff", b"\xf4\x90\x80\x80", b"5\x01"]
    ),
)
_ENTRY = st.builds(
    lambda name, sign, value: name.encode() + sign + value + b"\x02",
    st.sampled_from([*_NAMES, *_NAMES, "", "aa", "a b", "\u00e9"]),
    st.sampled_from([b"\x01", b"\x01", b"\x01", b"\x01", b"", b"\x02"]),
    st.one_of(_BYTES, st.just(b"")),
)
_PROPERTIES = st.builds(
    lambda entries, cut: b"".join(entries)[:cut],
    st.lists(_ENTRY, max_size=6),
    st.sampled_from([None, None, -1]),
)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_name = st.sampled_from(_NAMES)
_string = _TEXTS.map(_quoted)
_number = st.one_of(
    st.sampled_from(
        ["0", "5", "2147483647", "2147483648", "2147483649", "9007199254740993", "0.1", "5.0",
         "9223372036854775807", "9.2233720368547758e18", "4.9e-324", "1.7976931348623157e308"]
    ),
    st.integers(0, (1 << 63) - 1).map(str),
    st.floats(5e-324, 1.7e308).map(lambda number: f"{number:.17e}"),
)  # fmt: skip
_numeric = st.one_of(_number, _number.map("- {}".format), _name, _name.map("-{}".format))


def _lines(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draw one condition more over others."""
    side = st.one_of(_name, _string, _numeric, inner.map("({})".format))
    order = st.sampled_from(["<", "<=", ">", ">="])
    word = st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])
    negation = st.sampled_from(["", "NOT "])
    texts = st.lists(_string, min_size=1, max_size=5).map(", ".join)
    bounds = st.sampled_from(["-5 AND 5", "0.1 AND 2147483648", "a AND b", "- b AND 7"])
    return st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({}) OR ({})".format, inner, inner, inner),
        inner.map("NOT ({})".format),
        st.builds("{} {} {}".format, _name, st.sampled_from(["=", "<>"]), side),
        st.builds("{} {} {}".format, side, st.sampled_from(["=", "<>"]), _name),
        st.builds("{} = {}".format, _name, st.sampled_from(["TRUE", "FALSE"])),
        st.builds("({}) = {}".format, inner, st.sampled_from(["TRUE", "FALSE", "a", "5", "0.5"])),
        st.builds("{} {} {}".format, _numeric, order, _numeric),
        st.builds("-({}) {} {}".format, inner, order, _numeric),
        st.builds("{} {}BETWEEN {}".format, _numeric, negation, bounds),
        st.builds("{} {}IN ({})".format, _name, negation, texts),
        st.builds("{} {}{} {}".format, side, negation, word, st.one_of(_string, st.just("''"))),
        st.builds("{} IS {}NULL".format, side, negation),
    )


_CONDITIONS = st.recursive(
    st.one_of(_name, st.sampled_from(["TRUE", "FALSE", "NULL"])), _lines, max_leaves=8
)


def _record(number: int, physical_offset: int, properties: bytes) -> bytes:
    tail = b"body" + b"\x01t" + len(properties).to_bytes(2, "big") + properties
    head = HEAD_V4.pack(
        HEAD_V4.size + len(tail), MAGIC_V1, 0, 0, 0, number, physical_offset, 0, 0, bytes(8), 0,
        bytes(8), 0, 0, 4,
    )  # fmt: skip
    return head + tail


def _filter(condition: str) -> SqlFilter | None:
    """Compile a condition; None for one that is refused, as constants side by side are."""
    try:
        return compile_sql(condition)
    except FilterSyntaxError:
        return None


def _is_left(values: list[str | None]) -> bool:
    """Tell whether Python has to judge: other digits, hexadecimal numbers, long ones."""
    found = [value for value in values if value is not None]
    return any(len(text) > 64 or "0x" in text.lower() or not text.isascii() for text in found)


@pytest.mark.slow
@settings(max_examples=1500)
@given(_CONDITIONS, st.lists(_PROPERTIES, min_size=1, max_size=6))
@example("a = 5", [b"a\x01" + "\u0665".encode() + b"\x02", b"a\x015"])
@example("-0 = a", [b"a\x01-0"])
@example("a < b", [b"a\x01-0\x02b\x010"])
@example("a < 6.5", ["a\x01\xa05".encode(), b"a\x01\x00 5"])
@example("a = '\ufffd'", [b"a\x01\xff"])
def test_the_core_takes_what_the_definition_takes(condition: str, texts: list[bytes]) -> None:
    """It leaves to Python what only Python reads, and nothing else."""
    wanted = _filter(condition)
    if wanted is None:
        return
    assert wanted.condition is not None
    for text in texts:
        record = _record(0, 0, text)
        begin = len(record) - len(text)
        expected = wanted.matches_text(record, begin, len(record))
        runs, count, at = wanted.condition.judge(record, 0, 1, 1 << 40)
        if at:
            assert (runs, count) == ([(0, at)] * expected, int(expected)), condition
            assert at == len(record)
        else:
            assert _is_left(wanted._read(record, begin, len(record))), condition


class _InPython(NamedTuple):
    """A filter without the core."""

    wanted: SqlFilter
    condition: None = None

    def matches(self, properties: Any) -> bool:
        return self.wanted.matches(properties)

    def matches_text(self, text: bytes, start: int, end: int) -> bool:
        return self.wanted.matches_text(text, start, end)


class _Queue(NamedTuple):
    min_offset: int
    max_offset: int
    topic: str = "t"
    topic_bytes: bytes = b"t"
    queue_id: int = 0


class _Log:
    """Records in memory, and the units of the queue that they are: a `RecordSource`."""

    def __init__(self, texts: list[bytes]) -> None:
        self._data, self._units = b"", b""
        for number, text in enumerate(texts):
            record = _record(number, len(self._data), text)
            self._units += UNIT.pack(len(self._data), len(record), 0)
            self._data += record

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        return self._units[queue_offset * 20 :][: count * 20]

    def copy(self, places: bytes, runs: Sequence[tuple[int, int]]) -> bytes:
        return b"".join([self._data[at : at + size] for at, size in runs])

    def record(self, physical_offset: int, size: int) -> bytes:
        return self._data[physical_offset : physical_offset + size]


_NO_LOG: Any = CommitLog.__new__(CommitLog)
# Nothing is damaged here.
_NO_REPAIR: Any = None
_SIMPLE = st.sampled_from(
    [f"a\x01{value}\x02".encode() for value in ("1", "6", "7", "\u0667", "x")]
)


@settings(max_examples=300)
@given(
    st.lists(_SIMPLE, min_size=1, max_size=80), st.integers(1, 40), st.integers(0, 40),
    st.integers(-1, 1),
)  # fmt: skip
def test_reads_by_a_condition_are_those_of_the_definition(
    texts: list[bytes], count: int, room_for: int, more_bytes: int
) -> None:
    """The same records and places to go on, with whatever limits, up to the end of the queue."""
    log, queue = _Log(texts), _Queue(0, len(texts))
    max_bytes = max(room_for * len(_record(0, 0, texts[0])) + more_bytes, 1)
    wanted = compile_sql("a > 5")

    def reads(which: Any) -> Iterator[GetResult]:
        lookup = Lookup(_NO_LOG, _NO_REPAIR, skip_corrupt=False, check_crc=False, clock=lambda: 0.0)
        at = 0
        while at < len(texts):
            found = lookup.get_matching_message(
                queue,
                at,
                count,
                max_bytes,
                which,
                1 << 40,
                log,  # type: ignore[arg-type]
            )
            yield found._replace(slices=[b"".join(found.slices)])
            assert found.next_offset > at
            at = found.next_offset

    assert list(reads(wanted)) == list(reads(_InPython(wanted)))
