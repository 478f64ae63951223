"""What a row found, what it must reach, and whether it does.

Three kinds of targets, by what is compared with the *faster* of the peers in the same run:

    cpu   CPU per message: how many times ours the peer needs, at least
    less  the row's number, where less is better: its share of the peer's, at most
    more  the row's number, where more is better: its multiple of the peer's, at least
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

OURS = "mailboat"

Kind = Literal["cpu", "less", "more"]


@dataclass
class Result:
    """One row of one system."""

    row: str
    system: str
    value: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """A bound on one of the details of a row."""

    detail: str
    title: str
    most: float | None = None
    of_peer: str = ""
    """When set, the bound is this peer's number in the same run."""


@dataclass(frozen=True)
class Target:
    """What a row must reach."""

    kind: Kind
    ratio: float | None = None
    bound: float | None = None
    """A bound on the row's number itself; of CPU per message there is none, CPUs differ."""
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Check:
    """One thing that had to be reached; `is_reached` is None where it cannot be told."""

    text: str
    is_reached: bool | None
    why_not: str = ""


def cost_of(kind: Kind, result: Result) -> float | None:
    """Return the number of a result that is compared; None when it has none, or it is 0."""
    number = result.details.get("cpu_us") if kind == "cpu" else result.value
    return number or None


def faster_of(kind: Kind, peers: Sequence[Result]) -> Result | None:
    """Return the peer that is the harder to beat."""
    comparable = [peer for peer in peers if cost_of(kind, peer) is not None]
    if not comparable:
        return None
    choose = max if kind == "more" else min
    return choose(comparable, key=lambda peer: cost_of(kind, peer) or 0.0)


def ratio_to_faster(kind: Kind, ours: Result, peers: Sequence[Result]) -> float | None:
    """Return our ratio to the faster peer, as the module's table says for each kind."""
    faster = faster_of(kind, peers)
    if faster is None:
        return None
    own, other = cost_of(kind, ours), cost_of(kind, faster)
    if own is None or other is None:
        return None
    return other / own if kind == "cpu" else own / other


def sign_of(kind: Kind, *, of_ratio: bool) -> str:
    """Return the sign before a bound."""
    at_most = kind == "less" or (kind == "cpu" and not of_ratio)
    return "<=" if at_most else ">="


def checks(target: Target, ours: Result, peers: Mapping[str, Result]) -> list[Check]:
    """Return everything that the row had to reach."""
    found = []
    if target.ratio is not None:
        ratio = ratio_to_faster(target.kind, ours, list(peers.values()))
        sign = sign_of(target.kind, of_ratio=True)
        found.append(Check(f"{sign} {target.ratio:g} x", _holds(sign, ratio, target.ratio)))
    if target.bound is not None:
        sign = sign_of(target.kind, of_ratio=False)
        found.append(Check(f"{sign} {target.bound:,g}", _holds(sign, ours.value, target.bound)))
    excused = ours.details.get("excused", {})
    for limit in target.limits:
        most, text = limit.most, f"{limit.title} <= {limit.most:g}" if limit.most else ""
        if limit.of_peer:
            peer = peers.get(limit.of_peer)
            most = None if peer is None else peer.details.get(limit.detail)
            text = f"{limit.title} <= that of {limit.of_peer}"
        reached = None if most is None else _holds("<=", ours.details.get(limit.detail), most)
        if reached is False and limit.detail in excused:
            found.append(Check(text, None, excused[limit.detail]))
        else:
            found.append(Check(text, reached))
    return found


def has_errors(result: Result) -> bool:
    """Return whether any request of the row was refused or lost."""
    return bool(result.details.get("errors"))


def _holds(sign: str, number: float | None, bound: float) -> bool | None:
    if number is None:
        return None
    return number <= bound if sign == "<=" else number >= bound
