"""A Lease is gone, as with a deleted Broker that is made again on its volumes: who may lead.

Where all replicas are there, and none has lost anything, one of them has all that was acknowledged;
and of logs that followed each other's leaders the one of the latest epoch, and there the longest,
lacks nothing that another one has. None may lead or follow: a leader that lives writes its Lease
again.
"""

from collections.abc import Mapping

from mailboat_operator.planner.snapshot import Manifest


def last_to_lead(reports: Mapping[int, Manifest], count: int) -> int | None:
    """Return the replica that has all that was acknowledged; None where nobody can tell.

    Args:
        reports: What each has said of itself lately, by ordinal.
        count: How many replicas there are.
    """
    if set(reports) != set(range(count)) or not all(map(_keeps_all, reports.values())):
        return None
    return max(reports, key=lambda ordinal: (_place(reports[ordinal]), -ordinal))


def newest_epoch(reports: Mapping[int, Manifest]) -> int:
    """Return the newest epoch that any of them has heard of."""
    return max(max(int(report.get("seen") or 0), _place(report)[0]) for report in reports.values())


def _keeps_all(report: Manifest) -> bool:
    """Tell whether a replica waits, and has all that it ever acknowledged."""
    is_waiting = report.get("role") == "joining" and not report.get("alarm")
    return is_waiting and bool(report.get("keeps_all") and report.get("epoch"))


def _place(report: Manifest) -> tuple[int, int]:
    return int(report.get("epoch") or 0), int(report.get("end") or 0)
