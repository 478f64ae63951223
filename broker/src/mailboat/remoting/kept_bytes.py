"""One budget for all that a server keeps in memory for its peers.

What counts: answers that a peer has not read, the part of a frame that has arrived, frames put back
until the peer reads, and requests that are awaited. Each connection knows what it keeps now; the
sum is only known from above, as what was kept at the last look plus all that has come since, so
that nothing is counted down on the hot path. Only when that bound reaches the budget are the
connections asked.

Above the budget connections are closed, of the address that keeps the most first, and there those
whose bytes have not moved for a while, the largest first. Above half of it nothing is answered that
can wait: peers that read make room meanwhile, and those whose bytes do not move are closed. A
quarter beyond that is for peers that have read all they got, and one address that takes a quarter
by itself keeps nobody else waiting.
"""

import time
from collections.abc import Iterable
from typing import Final, Protocol

# The connections are asked once for so many bytes or seconds.
_STEPS: Final = 64
_LOOK_INTERVAL_S: Final = 0.005


class Keeper(Protocol):
    """What bytes are kept for."""

    peer: str
    """ "ip:port"."""

    is_stale: bool
    """Whether some of the bytes have been kept since before the last sweep."""

    def kept_bytes(self) -> int:
        """Return how many bytes are kept now."""
        ...

    def has_read_all(self) -> bool:
        """Tell whether something was written and nothing of it is left."""
        ...

    def drop(self, reason: str) -> None:
        """Close at once and give everything free."""
        ...


_Peers = dict[str, list[tuple[bool, int, Keeper]]]
"""By address: whether the bytes are stale, how many, whose."""


class KeptBytes:
    """What one server keeps for all its peers, held below a limit."""

    __slots__ = (
        "_budget",
        "_keepers",
        "_limit",
        "_looked_s",
        "_top_host",
        "_top_host_bytes",
        "at_most",
        "look_at",
        "roomy",
    )

    def __init__(self, budget_bytes: int, keepers: Iterable[Keeper]) -> None:
        """Hold `keepers`, which may change, below a budget in sum."""
        self._keepers = keepers
        self._budget = budget_bytes
        self._limit = budget_bytes - budget_bytes // _STEPS
        self.roomy = budget_bytes // 2
        """Up to it there is room for all, and `has_room` need not be asked."""
        self._looked_s = 0.0
        self._top_host = ""
        self._top_host_bytes = 0
        self.at_most = 0
        """No more than so many bytes are kept. Whoever keeps more adds to it first."""
        self.look_at = self._limit
        """Above it `settle` must be called."""

    def has_room(self, keeper: Keeper) -> bool:
        """Tell whether an answer that can wait should be written now."""
        if time.monotonic() - self._looked_s >= _LOOK_INTERVAL_S:
            self.look()
        if self.at_most <= self.roomy:
            return True
        quarter = self._budget // 4
        if self._top_host_bytes > quarter and _host(keeper.peer) != self._top_host:
            return True
        return self.at_most <= self.roomy + quarter and keeper.has_read_all()

    def look(self) -> int:
        """Return how many bytes are kept now."""
        total, _ = self._look(None, 0)
        return total

    def settle(self, growing: Keeper, size: int) -> bool:
        """Close connections until `size` more bytes have room; tell if `growing` is still open."""
        total, peers = self._look(growing, size)
        if total <= self._limit:
            return True
        return growing not in self._close(total, peers, self._limit, only_stale=False)

    def shed(self) -> None:
        """Close those whose bytes do not move while others wait for room."""
        if self.at_most > self.roomy:
            total, peers = self._look(None, 0)
            self._close(total, peers, self.roomy, only_stale=True)

    def _look(self, growing: Keeper | None, size: int) -> tuple[int, _Peers]:
        total = 0
        peers: _Peers = {}
        for keeper in self._keepers:
            kept = keeper.kept_bytes() + (size if keeper is growing else 0)
            if kept:
                total += kept
                peers.setdefault(_host(keeper.peer), []).append((keeper.is_stale, kept, keeper))
        sums = {host: sum(kept for _, kept, _ in found) for host, found in peers.items()}
        self._top_host = max(sums, key=sums.__getitem__, default="")
        self._top_host_bytes = sums.get(self._top_host, 0)
        self._know(total)
        return total, peers

    def _close(self, total: int, peers: _Peers, limit: int, *, only_stale: bool) -> list[Keeper]:
        """Close connections until `limit` bytes are left; return them."""
        if only_stale:
            peers = {host: [peer for peer in found if peer[0]] for host, found in peers.items()}
        sums = {host: sum(kept for _, kept, _ in found) for host, found in peers.items() if found}
        for found in peers.values():
            # Of equal ones the first in the set goes first, which `pop` takes last.
            found.reverse()
            found.sort(key=lambda peer: peer[:2])
        closed = []
        while total > limit and sums:
            host = max(sums, key=sums.__getitem__)
            _, kept, keeper = peers[host].pop()
            sums[host] -= kept
            if not peers[host]:
                del sums[host]
            total -= kept
            closed.append(keeper)
            keeper.drop(
                f"{kept} bytes of answers that it does not read and of requests that are not "
                f"finished wait for it, with more than {limit} for all (unsentBudgetBytes="
                f"{self._budget})"
            )
        self._know(total)
        return closed

    def _know(self, kept: int) -> None:
        self._looked_s = time.monotonic()
        self.at_most = kept
        self.look_at = max(self._limit, kept + self._budget // _STEPS)


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]
