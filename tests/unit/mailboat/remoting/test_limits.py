"""Tests of mailboat.remoting.limits."""

import resource

import pytest

from mailboat.remoting.limits import RemotingLimits, connection_capacity, http_connection_capacity


@pytest.mark.parametrize(
    ("soft_limit", "capacity", "http_capacity"),
    [
        (resource.RLIM_INFINITY, 16_384, 256),
        (1_048_576, 16_384, 256),
        (2048, 1280, 256),
        (1024, 384, 128),
        (300, 113, 37),
    ],
)
def test_connections_leave_descriptors_for_files(
    monkeypatch: pytest.MonkeyPatch, soft_limit: int, capacity: int, http_capacity: int
) -> None:
    """However low the process's limit is, the store can still open its next segment."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft_limit, soft_limit))
    assert capacity == connection_capacity(RemotingLimits())
    assert http_capacity == http_connection_capacity()
