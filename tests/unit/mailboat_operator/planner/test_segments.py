"""The segments of a large log in few words: what may go when stays almost the same."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat_operator.broker_answers import read_retention
from mailboat_operator.planner.forecast import releases_of
from mailboat_operator.planner.segments import SUMS, Segment, sum_segments

MIB = 1 << 20
NOW_S = 1_700_000_000.0
GROUPS = 64
CHART_LIMIT_BYTES = 256 * MIB
AT_REST_BYTES = 99 * MIB
"""Measured with 50 Brokers whose logs have one segment each (docs/operator.md)."""


def document(count: int, size_bytes: int = 64 * MIB) -> dict[str, Any]:
    """Return what a broker says whose log has so many segments, written within three days."""
    return {
        "broker_name": "orders-g0",
        "volume": {"capacity_bytes": 1 << 40, "used_bytes": 1 << 39, "available_bytes": 1 << 39},
        "max_physical_offset": count * size_bytes - size_bytes // 2,
        "segments": [
            {
                "physical_offset": number * size_bytes,
                "size_bytes": size_bytes,
                "first_timestamp_ms": int(NOW_S * 1000) - (count - number) * 15_000,
                "last_timestamp_ms": int(NOW_S * 1000) - (count - number - 1) * 15_000,
                "is_read": number < count // 2,
            }
            for number in range(count)
        ],
        "unconsumed_deleted": [{"group": "g", "topic": "t", "messages": 1}],
        "groups": [{"group": f"group-{number}", "topic": "t"} for number in range(200)],
    }


def test_a_log_of_a_tebibyte_is_kept_in_few_bytes() -> None:
    """64 brokers with 1 TiB in segments of 64 MiB each fit into the memory that the chart gives."""
    text = json.dumps(document(16_384)).encode()
    read_retention(text)
    tracemalloc.start()
    kept = read_retention(text)
    kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept["segments"]) <= SUMS + 3
    assert kept_bytes < 160 << 10
    # Beside what is kept of all, four answers are read at once, and one is taken apart.
    whole_bytes = AT_REST_BYTES + GROUPS * kept_bytes + 4 * len(text) + peak_bytes
    assert whole_bytes < CHART_LIMIT_BYTES * 3 // 4
    assert "groups" not in kept
    assert kept["unconsumed_deleted"] is True


@pytest.mark.parametrize("count", [0, 1, 2, SUMS])
def test_a_short_log_is_kept_as_it_is(count: int) -> None:
    """Nothing is added up where there is little."""
    said = document(count)
    segments = [Segment(**_known(item)) for item in said["segments"]]
    assert sum_segments(segments, None) == [_known(item) for item in said["segments"]]


segment_lists = st.lists(st.tuples(st.integers(-1, 200_000), st.integers(1, 100)), max_size=1500)


@given(segment_lists, st.integers(0, 1500), st.integers(0, 100_000), st.sampled_from([1, 24, 72]))
def test_sums_never_promise_more_than_the_segments(
    found: list[tuple[int, int]], read: int, end_mib: int, hours: int
) -> None:
    """At any time as many bytes may go, or fewer by at most a 240th part of the log."""
    segments, position = [], 0
    for number, (age_s, size_mib) in enumerate(found):
        newest_ms = -1 if age_s < 0 else int((NOW_S - age_s) * 1000)
        segments.append(Segment(position, size_mib * MIB, newest_ms, number < read))
        position += size_mib * MIB
    end = end_mib * MIB
    whole = {"segments": [_fields(item) for item in segments], "max_physical_offset": end}
    summed = {"segments": sum_segments(segments, end), "max_physical_offset": end}
    options = {"now_s": NOW_S, "hours": 72, "read_hours": hours}
    before, after = releases_of(whole, **options), releases_of(summed, **options)
    assert sum(item.size_bytes for item in before) == sum(item.size_bytes for item in after)
    assert len(after) <= SUMS + 3
    most = -(-len(segments) // SUMS) * 100 * MIB
    for at_s in {item.after_s for item in before} | {item.after_s for item in after}:
        gone = [sum(it.size_bytes for it in all_of if it.after_s <= at_s)
                for all_of in (before, after)]  # fmt: skip
        assert gone[1] <= gone[0] <= gone[1] + _same_time(before, at_s) + most


def _same_time(releases: tuple[Any, ...], at_s: float) -> int:
    return sum(item.size_bytes for item in releases if item.after_s == at_s)


def _known(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "first_timestamp_ms"}


def _fields(item: Segment) -> dict[str, Any]:
    return {
        "physical_offset": item.physical_offset,
        "size_bytes": item.size_bytes,
        "last_timestamp_ms": item.last_timestamp_ms,
        "is_read": item.is_read,
    }
