"""How the replicas of a group keep its messages."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

__all__ = ["REPLICAS_MAX", "ReplicationSpec"]

REPLICAS_MAX: Final = 5
_SYNC_MINIMUM: Final = 2


class ReplicationSpec(msgspec.Struct, frozen=True, rename="camel"):
    """How the replicas of a group work together; without effect while `replicas` is 1."""

    mode: Annotated[
        Literal["Sync", "Async"],
        Meta(
            description="When a send is answered. Sync: once every replica of the in-sync set has"
            " it. Async: once the leader has it, so that a lost leader takes the newest messages"
            " with it."
        ),
    ] = "Sync"
    in_sync_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | None,
        Meta(
            description="How many replicas, the leader counted, have to be in the in-sync set; with"
            " fewer, sends are refused. Default: 2 for Sync, 1 for Async, and never more than"
            " replicas."
        ),
    ] = None
    lease_seconds: Annotated[
        int,
        Meta(
            description="How long a leader that nobody hears of is waited for before another"
            " replica takes its place.",
            ge=6,
            le=60,
        ),
    ] = 6
    catch_up_bytes_per_second: Annotated[
        int,
        Meta(
            description="How fast a leader sends old parts of its log to replicas that lack them.",
            ge=65_536,
            le=1_000_000_000_000,
        ),
    ] = 104_857_600

    def minimum(self, replicas: int) -> int:
        """Return how many of so many replicas the in-sync set never falls below."""
        default = _SYNC_MINIMUM if self.mode == "Sync" else 1
        return min(self.in_sync_replicas or default, replicas)
