"""What an expression takes. The golden tables were worked out from RocketMQ's own classes
(filter/expression/*.java of 5.5.0); the interop tests show that a real broker agrees."""

import subprocess
import sys
import time

import pytest
from sql92_golden import condition_rows, golden_properties, refused_rows

from mailboat.errors import FilterSyntaxError
from mailboat.filtering.sql import limits
from mailboat.filtering.sql.sql_filter import compile_sql

# T is true, F is false, U is unknown: the absent property `u` compared with anything.
_TRUTH = {"T": "t = '1'", "F": "t = '2'", "U": "u = '1'"}
_THROWS = "x > 5"
_LOGIC_PROPERTIES = {"t": "1", "x": "no number"}


def _value(condition: str, properties: dict[str, str]) -> str:
    """Tell a condition's three-valued result; only TRUE is seen from outside, so ask around it."""
    if compile_sql(condition).matches(properties):
        return "T"
    if compile_sql(f"NOT ({condition})").matches(properties):
        return "F"
    return "U" if compile_sql(f"({condition}) IS NULL").matches(properties) else "throws"


@pytest.mark.parametrize(
    ("left", "operator", "right", "expected"),
    [
        ("T", "AND", "T", "T"), ("T", "AND", "F", "F"), ("T", "AND", "U", "U"),
        ("F", "AND", "T", "F"), ("F", "AND", "F", "F"), ("F", "AND", "U", "F"),
        ("U", "AND", "T", "U"), ("U", "AND", "F", "F"), ("U", "AND", "U", "U"),
        ("T", "OR", "T", "T"), ("T", "OR", "F", "T"), ("T", "OR", "U", "T"),
        ("F", "OR", "T", "T"), ("F", "OR", "F", "F"), ("F", "OR", "U", "U"),
        ("U", "OR", "T", "T"), ("U", "OR", "F", "U"), ("U", "OR", "U", "U"),
    ],
)  # fmt: skip
def test_and_and_or_follow_three_valued_logic(
    left: str, operator: str, right: str, expected: str
) -> None:
    """Every pair of true, false and unknown."""
    condition = f"{_TRUTH[left]} {operator} {_TRUTH[right]}"
    assert _value(condition, _LOGIC_PROPERTIES) == expected


@pytest.mark.parametrize(("operand", "expected"), [("T", "F"), ("F", "T"), ("U", "U")])
def test_not_follows_three_valued_logic(operand: str, expected: str) -> None:
    """The contrary of unknown is unknown."""
    assert _value(f"NOT ({_TRUTH[operand]})", _LOGIC_PROPERTIES) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (f"{_TRUTH['T']} OR {_THROWS}", "T"),
        (f"{_THROWS} OR {_TRUTH['T']}", "throws"),
        (f"{_TRUTH['U']} OR {_THROWS}", "throws"),
        (f"{_TRUTH['F']} AND {_THROWS}", "F"),
        (f"{_THROWS} AND {_TRUTH['F']}", "throws"),
        (f"{_TRUTH['U']} AND {_THROWS}", "throws"),
        (f"({_TRUTH['U']} AND {_THROWS}) OR {_TRUTH['T']}", "throws"),
        (f"NOT ({_THROWS})", "throws"),
        (f"u > x AND {_TRUTH['T']}", "U"),
    ],
)
def test_a_value_that_cannot_be_compared_ends_the_evaluation(condition: str, expected: str) -> None:
    """The message is not taken then, unless AND or OR were decided before."""
    assert _value(condition, _LOGIC_PROPERTIES) == expected


@pytest.mark.parametrize(("condition", "expected"), condition_rows())
def test_a_condition_is_true_false_or_unknown(condition: str, expected: str) -> None:
    """The whole grammar, with the quirks that RocketMQ's evaluation has."""
    assert _value(condition, golden_properties()) == expected


@pytest.mark.parametrize(("text", "reason"), [(row.text, row.reason) for row in refused_rows()])
def test_a_wrong_expression_is_refused_with_place_and_reason(text: str, reason: str) -> None:
    """Nothing is ignored, and nothing passes that RocketMQ's own checks refuse."""
    with pytest.raises(FilterSyntaxError) as caught:
        compile_sql(text)
    assert reason in str(caught.value)


_TOO_MANY = limits.MAX_COMPARISONS + 1
_TOO_DEEP = limits.MAX_DEPTH + 1
_DOUBLING = "-(" * 20 + "a BETWEEN 1 AND 2" + ") BETWEEN 1 AND 2" * 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = '" + "x" * limits.MAX_EXPRESSION_CHARACTERS + "'", "characters where 16384"),
        ("(" * 5000 + "a = 5" + ")" * 5000, "more than 4096 words"),
        ("a = 5 = " * limits.MAX_DEPTH + "5", "more than 64 deep"),
        ("NOT " * _TOO_DEEP + "a", "more than 64 deep"),
        ("a = " + "- " * _TOO_DEEP + "5", "more than 64 deep"),
        (" OR ".join(["a=5"] * _TOO_MANY), "more than 256 comparisons"),
        (" AND ".join(["a"] * _TOO_MANY), "more than 256 comparisons"),
        (_DOUBLING, "more than 256 comparisons"),
        (" OR ".join(["a CONTAINS 'b'"] * 65), "a CONTAINS counts for 4"),
        (" OR ".join([f"a CONTAINS '{'b' * 64}'"] * 33), "one more for each 16 characters"),
        ("a = 5 OR " + " OR ".join(["a NOT CONTAINS 'b'"] * 64), "a CONTAINS counts for 4"),
    ],
    ids="text tokens chain not minus or properties doubling contains long not-contains".split(),
)
def test_an_expression_beyond_a_limit_is_refused(text: str, reason: str) -> None:
    """Text, tokens, depth and comparisons are bounded, whatever the expression is made of."""
    with pytest.raises(FilterSyntaxError) as caught:
        compile_sql(text)
    assert reason in str(caught.value)


def test_what_the_limits_allow_works() -> None:
    """A list of a thousand texts, 256 comparisons and parentheses by the hundred."""
    texts = ",".join(f"'{number:06d}'" for number in range(1500))
    wanted = compile_sql(f"a IN ({texts})")
    assert wanted.matches({"a": "001499"})
    assert not wanted.matches({"a": "001500"})
    conditions = " OR ".join(f"a = {number}" for number in range(limits.MAX_COMPARISONS))
    assert compile_sql(conditions).matches({"a": "255"})
    assert compile_sql("(" * 900 + "a" + ")" * 900 + " = 5").matches({"a": "5"})


@pytest.mark.parametrize(
    ("condition", "value", "is_taken"),
    [
        ("a = 5", "0" * 30_000 + "5", True),
        ("a = -5", "-" + "0" * 30_000 + "5", True),
        ("a = 5", "\u0660" * 10_000 + "\u0665", True),
        ("a > 5", "9" * 30_000, False),
        ("a > 5", "\u0669" * 10_000, False),
        ("a > 5.5", "9" * 30_000, True),
        ("a < 0.5", "0." + "1" * 30_000, True),
        ("a < 0.5", "0." + "1" * 30_000 + "x", False),
        ("a < 0.5", "0x." + "1" * 30_000 + "p1", True),
        ("a = TRUE", "t" * 30_000, False),
        ("a CONTAINS 'ab'", "a" * 30_000, False),
    ],
)  # fmt: skip
def test_long_values_are_read_as_short_ones(condition: str, value: str, is_taken: bool) -> None:
    """They cost one reading, however often an expression compares them, and raise nothing."""
    counts_for = limits.contains_comparisons("ab") if "CONTAINS" in condition else 1
    copies = limits.MAX_COMPARISONS // (counts_for + 1) - 1
    many = " OR ".join([f"({condition} AND x = 'none')"] * copies)
    wanted = compile_sql(f"{many} OR {condition}")
    text = f"x\x01none but one\x02a\x01{value}\x02".encode()
    begin_s = time.process_time()
    assert wanted.matches_text(text, 0, len(text)) is is_taken
    # A hundred times what it takes.
    assert time.process_time() - begin_s < 2.0


def test_many_long_numbers_of_another_script_take_a_few_milliseconds() -> None:
    """More texts than are remembered from one comparison to the next."""
    names = [f"p{number}" for number in range(17)]
    wanted = compile_sql(" AND ".join([f"{names[at % 17]} >= 0" for at in range(250)]))
    values = {name: "\u0660" * 950 + f"{at:02}" for at, name in enumerate(names)}
    began_s = time.process_time()
    for _ in range(20):
        assert wanted.matches(values)
    # Four times what it takes, and half of what a look at every digit takes.
    assert time.process_time() - began_s < 0.4


def test_nothing_of_sql_is_imported_before_it_is_needed() -> None:
    """The parser's memory and time are paid by brokers with SQL subscriptions only."""
    script = (
        "import sys, mailboat.node, mailboat.broker.controller\n"
        "bad = [m for m in sys.modules if m == 'lark' or m.startswith('lark.')]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
