"""Tests of mailboat.remoting.limits."""

import resource

import pytest

from mailboat.remoting.limits import RemotingLimits, connection_capacity


@pytest.mark.parametrize(
    ("soft_limit", "capacity"),
    [(resource.RLIM_INFINITY, 16_384), (1_048_576, 16_384), (2048, 1536), (1024, 512), (300, 150)],
)
def test_connections_leave_descriptors_for_files(
    monkeypatch: pytest.MonkeyPatch, soft_limit: int, capacity: int
) -> None:
    """However low the process's limit is, the store can still open its next segment."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft_limit, soft_limit))
    assert capacity == connection_capacity(RemotingLimits())
