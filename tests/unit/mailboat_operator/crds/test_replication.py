"""How many replicas have to be in sync."""

import pytest

from mailboat_operator.crds.replication import ReplicationSpec


@pytest.mark.parametrize(
    ("spec", "replicas", "minimum"),
    [
        (ReplicationSpec(), 3, 2),
        (ReplicationSpec(), 2, 2),
        (ReplicationSpec(), 1, 1),
        (ReplicationSpec(mode="Async"), 3, 1),
        (ReplicationSpec(in_sync_replicas=3), 5, 3),
        (ReplicationSpec(mode="Async", in_sync_replicas=2), 3, 2),
    ],
)
def test_the_minimum_follows_from_mode_and_number(spec, replicas, minimum):
    """Two for Sync, one for Async, unless the spec says otherwise; never more than there are."""
    assert spec.minimum(replicas) == minimum
