"""Which brokers move single queues of a group."""

import pytest

from mailboat.client.admin.offsets import resets_single_queues


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("V4_9_8", False),
        ("V5_0_0", True),
        ("V5_3_3_SNAPSHOT", True),
        ("HIGHER_VERSION", True),
        ("V10_0_0", True),
        ("BEFORE_V4_1_0(0)", False),
        ("", False),
    ],
)
def test_single_queues_since_5(version: str, expected: bool):
    """A 4.x broker ignores which queue is meant and would move them all."""
    assert resets_single_queues(version) is expected
