"""Sizes and times as Kubernetes writes them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat_operator.crds.quantity import (
    DURATION_PATTERN,
    QUANTITY_PATTERN,
    STEP_PATTERN,
    GrowthStep,
    format_quantity,
    parse_duration,
    parse_quantity,
    parse_step,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("512", 512),
        ("1k", 1_000),
        ("1Ki", 1_024),
        ("20G", 20_000_000_000),
        ("100Gi", 107_374_182_400),
        ("1.5Gi", 1_610_612_736),
        ("2Ti", 2_199_023_255_552),
        ("1.001Ki", 1_026),
        ("0.5Gi", None),
        ("", None),
        ("0", None),
        ("-1Gi", None),
        ("1 Gi", None),
        ("1gi", None),
        ("1e3", None),
        ("100m", None),
        ("1Gi\n", None),
        ("\u0661Gi", None),
    ],
)
def test_size(text, size_bytes):
    """A size is what Kubernetes takes it for, rounded up to bytes, or refused."""
    if size_bytes is not None:
        assert parse_quantity(text) == size_bytes
    else:
        with pytest.raises(ValueError, match="must be a size such as"):
            parse_quantity(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (1, "1"), (1023, "1023"), (1536, "1536"), (1 << 30, "1Gi"), (5 << 29, "2560Mi")],
)
def test_size_is_spelt(size_bytes, text):
    """A size is spelt exactly, with the largest binary unit."""
    assert format_quantity(size_bytes) == text


@given(size_bytes=st.integers(1, 1 << 49))
def test_size_survives_a_round_trip(size_bytes):
    """What is spelt is read as the same size."""
    assert parse_quantity(format_quantity(size_bytes)) == size_bytes


@given(text=st.from_regex(QUANTITY_PATTERN, fullmatch=True))
def test_schema_and_parser_know_the_same_sizes(text):
    """What the API server's pattern lets through can be read."""
    if not text.endswith("\n"):
        assert parse_quantity(text) >= 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("0s", 0),
        ("90m", 5_400),
        ("6h", 21_600),
        ("6h30m", 23_400),
        ("1h1m1s", 3_661),
        ("", None),
        ("6", None),
        ("1d", None),
        ("1m1h", None),
        ("-1h", None),
        ("1.5h", None),
        ("6h\n", None),
    ],
)
def test_duration(text, seconds):
    """A duration is what it says, or refused."""
    if seconds is not None:
        assert parse_duration(text) == seconds
    else:
        with pytest.raises(ValueError, match="must be a time such as"):
            parse_duration(text)


@given(text=st.from_regex(DURATION_PATTERN, fullmatch=True))
def test_schema_and_parser_know_the_same_durations(text):
    """What the API server's pattern lets through can be read; the empty text is for its length."""
    if text.strip("\n") == text and text:
        assert parse_duration(text) >= 0


@pytest.mark.parametrize(
    ("text", "current_bytes", "grows_by"),
    [("20%", 1000, 200), ("20%", 1001, 201), ("1%", 1, 1), ("10Gi", 5, 10 << 30), ("999%", 2, 20)],
)
def test_step(text, current_bytes, grows_by):
    """A step is a part of what is there, rounded up, or a size."""
    assert parse_step(text).bytes_of(current_bytes) == grows_by


@pytest.mark.parametrize("text", ["", "%", "0%", "1000%", "20 %", "x", "20%\n", "-5%", "5.5%"])
def test_wrong_step(text):
    """What is no step is refused, here and in the API server."""
    with pytest.raises(ValueError, match="must be a percentage such as"):
        parse_step(text)
    assert text.endswith("\n") or re.search(STEP_PATTERN, text) is None


def test_step_of_nothing():
    """A step without a value does not grow."""
    assert GrowthStep().bytes_of(10) == 0
