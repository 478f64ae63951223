"""What is done about one volume of a Broker, and what is shown of it.

A volume's size follows from the spec, from its claim and from its use; it never becomes smaller.
The claim itself is the record of how far a volume has grown, so nothing is written into the spec.

    claim                                      done
    missing, unbound, being removed            nothing: Kubernetes is at it
    being removed under a running pod          nothing, and the pod is not restarted
    asks for more than it has                  waited for; the pod is restarted if the file system
                                               only grows at its start
    the driver cannot make the size            asked for less, as Kubernetes' recovery allows
    smaller than the spec                      asked for the spec's size
    filling                                    autopilot.py decides
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mailboat_operator.crds.quantity import format_quantity
from mailboat_operator.crds.retention import ThresholdsSpec
from mailboat_operator.crds.status import StorageStatusEntry
from mailboat_operator.planner.actions import Action, ConfigureBroker, Notify, ResizeClaim, Step
from mailboat_operator.planner.autopilot import (
    MEBIBYTE,
    SETTLE_S,
    Blocked,
    Growth,
    GrowthCase,
    RetentionCase,
    decide_growth,
    decide_read_hours,
    horizon_s,
    rate_text,
    shown_time_to_force_clean,
    time_text,
    time_to_force_clean,
)
from mailboat_operator.planner.broker_config import ASK_AGAIN_S
from mailboat_operator.planner.claims import (
    Claim,
    claim_of,
    ending_text,
    pending_text,
    size_of,
    template_bytes_of,
    words_of,
)
from mailboat_operator.planner.conditions import CLAIM_DELETED, STORAGE_READY, previous_condition
from mailboat_operator.planner.forecast import (
    Reading,
    Release,
    level_bytes,
    read_volume,
    releases_of,
)
from mailboat_operator.planner.pods import is_ending, seconds
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest, VolumeNumbers
from mailboat_operator.planner.volume_status import (
    SHOWN_S,
    active_thresholds,
    forecast_field,
    inodes_percent,
    message_field,
    oldest_time,
    time_field,
)
from mailboat_operator.resources.names import VOLUME, claim_name, group_of

NO_GROWTH: Final = Growth()

READ_HOURS_KEY: Final = "readFileReservedTime"

INFEASIBLE_S: Final = 6 * 3600.0
"""So long a size that the storage driver could not make is not asked for again."""

REFUSED_S: Final = 300.0
"""Time between two attempts at a size that the API server does not take."""

_LANDED_S: Final = 60.0
_GROWS_S: Final = 300.0
"""So long nothing is deleted early for a volume that is being made larger."""

_NODE_GROWS_S: Final = 180.0
"""So long a kubelet may take to grow a file system that grows while it is used."""

_NODE_REFUSED_S: Final = 15.0
_OFTEN_S: Final = 15.0
SELDOM_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Before:
    """What the status said of a volume at the last plan."""

    entry: Mapping[str, Any]

    def bytes_of(self, field: str) -> int | None:
        """Return a size."""
        text = self.entry.get(field)
        return None if text is None else size_of(text)

    def time_s(self, field: str) -> float | None:
        """Return a time, in seconds since 1970."""
        return seconds(self.entry.get(field))


@dataclass(slots=True)
class _Found:
    """What is decided about one volume; filled step by step."""

    desired_bytes: int
    reason: str = "VolumesReady"
    message: str = ""
    blocked: Blocked | None = None
    growth: Growth = NO_GROWTH
    resize_bytes: int | None = None
    notices: tuple[Notify, ...] = ()
    last_growth_s: float | None = None
    grown_from_bytes: int | None = None
    last_emergency_s: float | None = None
    infeasible_bytes: int | None = None
    refusal_s: float | None = None
    again_s: float = SELDOM_S


class Volume:
    """One broker's volume: looked at, decided, and shown."""

    def __init__(
        self, snapshot: BrokerSnapshot, pod: str, *, floor_bytes: int = 0, is_replica: bool = False
    ) -> None:
        """Look at the volume of a pod, which has to have `floor_bytes` at least."""
        self.snapshot = snapshot
        self.spec = snapshot.resource.spec
        self.group, self.pod_name = group_of(pod), pod
        self.name = pod if is_replica else self.group
        self.claim_name = claim_name(self.pod_name)
        self.floor_bytes = max(self.spec.storage.size_bytes, floor_bytes)
        """What it should have at least: the spec's size, or that of the largest of its group."""
        self.pod = _pod_on(snapshot.children.pods.get(self.pod_name), self.claim_name)
        self.claim = claim_of(snapshot.children.claims.get(self.claim_name))
        observed = snapshot.observations.get(self.pod_name) if self.pod is not None else None
        self.observation = observed
        self.reading = read_volume(observed, snapshot.monotonic_s, snapshot.fresh_s)
        self.before = _Before(_previous_entry(snapshot.resource.status, self.pod_name))
        self.template_live = template_bytes_of(snapshot.children.stateful_sets.get(self.group))
        self.found = _Found(
            desired_bytes=max(
                self.floor_bytes,
                self.claim.size_bytes if self.claim else self.template_live,
            ),
            last_growth_s=self.before.time_s("lastGrowthTime"),
            grown_from_bytes=self.before.bytes_of("grownFrom"),
            last_emergency_s=self.before.time_s("lastEmergencyGrowthTime"),
        )
        self.kept_hours = self._current_read_hours()
        self.read_hours = self.kept_hours
        self.releases_known: dict[int, tuple[Release, ...]] = {}
        self.retention_step: Step | None = None
        self.retention_changed_s = self._retention_changed_s()

    # ---- the size

    def decide(self) -> None:
        """Decide about the size, then about the retention."""
        claim = self.claim
        if claim is not None and claim.is_ending and self.pod is not None:
            self._settle(CLAIM_DELETED, ending_text(claim, self.pod_name))
            self._tell_once(CLAIM_DELETED, self.found.message)
            # Nobody makes this volume larger any more, and its broker may serve for weeks.
            self.found.blocked = "Refused" if self._autopilot(claim).why else None
            self._decide_retention(claim)
            return
        if claim is None or not claim.is_usable:
            self._settle("VolumesPending", f"{self.claim_name} {pending_text(claim)}")
            return
        self._remember_infeasible(claim)
        self._note_grown(claim)
        if claim.infeasible_bytes is not None and claim.request_bytes > claim.lowest_bytes:
            self._ask_for_less(claim)
        elif claim.is_growing and self.floor_bytes <= claim.request_bytes:
            self._wait_for_growth(claim)
        else:
            self._grow(claim)
        self._decide_retention(claim)

    def _grow(self, claim: Claim) -> None:
        """Ask for the spec's size, for one that was decided before, or for what is needed."""
        found = self.found
        floor_bytes = self.floor_bytes
        refusal = self._class_refusal(claim)
        if floor_bytes > claim.size_bytes:
            if refusal:
                found.blocked = "ClassCannotGrow"
                self._settle("ClassCannotGrow", f"{claim.name}: {refusal}")
            elif found.infeasible_bytes is not None and floor_bytes >= found.infeasible_bytes:
                found.blocked = "ResizeInfeasible"
                self._settle("ResizeInfeasible", self._infeasible_text(claim))
            else:
                self._ask(claim, floor_bytes, self._floor_reason())
            return
        unlanded = self._unlanded(claim)
        if unlanded is not None and not refusal:
            self._ask(claim, unlanded, "it was decided before")
            return
        if not claim.is_growing and not self._has_just_grown(claim):
            found.growth = self._autopilot(claim)
        self._act_on(claim, found.growth, refusal)

    def _floor_reason(self) -> str:
        if self.floor_bytes > self.spec.storage.size_bytes:
            return "that of another replica of its group has as much"
        return "spec.storage.size is larger"

    def _act_on(self, claim: Claim, growth: Growth, refusal: str | None) -> None:
        found, auto_grow = self.found, self.spec.storage.auto_grow
        limit_bytes = auto_grow.max_size_bytes
        found.blocked = growth.blocked
        if refusal and auto_grow.enabled and claim.size_bytes < (limit_bytes or 0):
            found.blocked = "ClassCannotGrow" if growth.why else None
            self._settle("ClassCannotGrow", f"{claim.name}: {refusal}")
            self._refuse(growth.why or "autoGrow is enabled")
        elif growth.size_bytes is not None and growth.size_bytes > claim.request_bytes:
            self._ask(claim, growth.size_bytes, growth.why)
            if growth.past_cooldown:
                found.last_emergency_s = self.snapshot.now_s
        elif found.infeasible_bytes is not None and (
            growth.why or self._is_infeasible_at_rest(claim)
        ):
            # What is left below the size that cannot be made is not worth another attempt.
            if growth.size_bytes is not None:
                found.blocked = "ResizeInfeasible"
            self._settle("ResizeInfeasible", self._infeasible_text(claim))
        elif growth.blocked == "AtMaxSize":
            size = format_quantity(claim.size_bytes)
            self._settle("AtMaxSize", f"{claim.name} has {size} and may not grow beyond maxSize")
            self._refuse(growth.why)
        else:
            self._settle(*self._size_verdict(claim))
            found.again_s = min(found.again_s, max(_OFTEN_S, growth.wait_s or math.inf))

    def _ask(self, claim: Claim, size_bytes: int, why: str) -> None:
        """Ask for a larger size; again and again, but ever less often, while that is not taken."""
        found, now_s = self.found, self.snapshot.now_s
        found.desired_bytes = size_bytes
        change = f"from {format_quantity(claim.size_bytes)} to {format_quantity(size_bytes)}"
        asked_s = found.last_growth_s
        is_same = self._unlanded(claim) == size_bytes and asked_s is not None
        words = self.snapshot.refused_sizes.get(claim.name)
        is_late = is_same and (words is not None or now_s - (asked_s or 0.0) > _LANDED_S)
        refused_s = self.before.time_s("lastRefusalTime")
        if is_late:
            found.blocked = "Refused"
            self._settle("ResizeRefused", self._refused_text(claim, change, words))
            self._refuse(why)
            found.refusal_s = refused_s
            if refused_s is not None and now_s - refused_s < REFUSED_S:
                found.again_s = REFUSED_S - (now_s - refused_s)
                return
            found.refusal_s = now_s
        else:
            self._settle("Resizing", f"{claim.name} grows {change}")
        found.resize_bytes = size_bytes
        found.again_s = _OFTEN_S
        if not is_same:
            found.last_growth_s = now_s
            found.notices = (
                *found.notices,
                Notify("Normal", "VolumeGrowing", f"{claim.name} grows {change}: {why}"),
            )

    def _ask_for_less(self, claim: Claim) -> None:
        """Take back a size that cannot be made; try one in between if the volume needs it."""
        found = self.found
        found.blocked = "ResizeInfeasible"
        floor_bytes = self.floor_bytes
        size_bytes = claim.lowest_bytes
        if claim.capacity_bytes < floor_bytes < claim.request_bytes:
            size_bytes = floor_bytes
        elif floor_bytes <= claim.capacity_bytes:
            found.growth = self._autopilot(claim, is_second_try=True)
            if found.growth.size_bytes is not None:
                size_bytes, found.last_growth_s = found.growth.size_bytes, self.snapshot.now_s
        found.resize_bytes = min(size_bytes, claim.request_bytes - 1)
        found.desired_bytes = max(floor_bytes, found.resize_bytes)
        self._settle("ResizeInfeasible", self._infeasible_text(claim))
        text = (
            f"{claim.name} cannot have {format_quantity(claim.request_bytes)}"
            f" ({words_of(claim)}) and asks for {format_quantity(found.resize_bytes)}"
        )
        found.notices = (*found.notices, Notify("Warning", "VolumeGrowthRefused", text))
        found.again_s = _OFTEN_S

    def _wait_for_growth(self, claim: Claim) -> None:
        found = self.found
        found.again_s = _OFTEN_S
        change = (
            f"from {format_quantity(claim.capacity_bytes)} to"
            f" {format_quantity(claim.request_bytes)}"
        )
        found.growth = self._autopilot(claim)
        if claim.problem and (claim.node_pending_s is None or self._restart_wait_s() is None):
            found.blocked = "Refused"
            self._settle("ResizeRefused", f"{claim.name} does not grow {change}: {words_of(claim)}")
            self._refuse(found.growth.why)
            return
        found.blocked = "Resizing" if found.growth.why else None
        waits = ", for a restart of its pod" if self.restart_reason() else ""
        self._settle("Resizing", f"{claim.name} grows {change}{waits}")

    def _autopilot(self, claim: Claim, *, is_second_try: bool = False) -> Growth:
        numbers = self.reading.numbers
        if numbers is None:
            return Growth()
        case = self._growth_case(claim, numbers)
        if is_second_try:
            case = replace(case, size_bytes=claim.capacity_bytes, is_second_try=True)
        return decide_growth(case)

    def _growth_case(self, claim: Claim, numbers: VolumeNumbers) -> GrowthCase:
        found = self.found
        # At rest after a refusal the claim asks for a little more than it has.
        at_rest = self._is_infeasible_at_rest(claim)
        return GrowthCase(
            auto_grow=self.spec.storage.auto_grow,
            thresholds=self.spec.retention.thresholds,
            size_bytes=claim.capacity_bytes if at_rest else claim.size_bytes,
            numbers=numbers,
            rates=self.reading.rates,
            releases=self._releases(self.spec.retention.hours),
            forced_releases=self._releases(0),
            is_emergency=_is_emergency(self.reading, self.spec.retention.thresholds),
            now_s=self.snapshot.now_s,
            last_growth_s=found.last_growth_s,
            grown_from_bytes=found.grown_from_bytes,
            last_emergency_s=found.last_emergency_s,
            infeasible_bytes=found.infeasible_bytes,
            settle_s=max(SETTLE_S, self.snapshot.fresh_s + _OFTEN_S),
        )

    def _releases(self, read_hours: int) -> tuple[Release, ...]:
        known = self.releases_known.get(read_hours)
        if known is None:
            known = self.releases_known[read_hours] = releases_of(
                self.reading.retention,
                now_s=self.snapshot.now_s,
                hours=self.spec.retention.hours,
                read_hours=read_hours,
            )
        return known

    def _remember_infeasible(self, claim: Claim) -> None:
        found, now_s = self.found, self.snapshot.now_s
        known = self.before.bytes_of("infeasibleSize")
        known_s = self.before.time_s("lastRefusalTime")
        if known is not None and (known_s is None or now_s - known_s >= INFEASIBLE_S):
            known = None
        seen = claim.infeasible_bytes
        if seen is not None and claim.request_bytes > claim.lowest_bytes:
            if known is None or seen < known:
                known, known_s = seen, now_s
        if known is not None and known > claim.capacity_bytes:
            found.infeasible_bytes, found.refusal_s = known, known_s

    def _is_infeasible_at_rest(self, claim: Claim) -> bool:
        """Whether the driver made nothing of the last size, and all was taken back."""
        return (
            claim.infeasible_bytes is not None
            and claim.capacity_bytes < claim.request_bytes <= claim.lowest_bytes
        )

    def _unlanded(self, claim: Claim) -> int | None:
        """Return a size that was decided and that the claim never asked for."""
        wanted, asked = self.before.bytes_of("desiredSize"), self.before.bytes_of("requestedSize")
        if wanted is None or asked is None or self.found.last_growth_s is None:
            return None
        if not asked < wanted or asked != claim.request_bytes:
            return None
        if self.before.entry.get("infeasibleSize") or self.found.infeasible_bytes is not None:
            return None
        storage = self.spec.storage
        limit_bytes = storage.auto_grow.max_size_bytes if storage.auto_grow.enabled else 0
        return wanted if wanted <= max(limit_bytes or 0, self.floor_bytes) else None

    def _has_just_grown(self, claim: Claim) -> bool:
        """Whether the broker's numbers are still those of a smaller volume."""
        return self.before.bytes_of("capacity") not in (None, claim.capacity_bytes)

    def _note_grown(self, claim: Claim) -> None:
        had = self.before.bytes_of("capacity")
        if had is not None and had < claim.capacity_bytes:
            text = (
                f"{claim.name} has grown from {format_quantity(had)} to"
                f" {format_quantity(claim.capacity_bytes)}"
            )
            self.found.notices = (Notify("Normal", "VolumeGrown", text, self.pod_name),)
            self.found.last_growth_s = self.snapshot.now_s
            self.found.grown_from_bytes = had

    def _class_refusal(self, claim: Claim) -> str | None:
        classes = self.snapshot.storage_classes
        if not claim.class_name:
            return "it has no StorageClass, so Kubernetes does not let it grow"
        if classes is None:
            return None
        found = classes.get(claim.class_name)
        if found is None:
            return f"its StorageClass {claim.class_name} does not exist, so it cannot grow"
        if not found.get("allowVolumeExpansion"):
            return f"its StorageClass {claim.class_name} has no allowVolumeExpansion"
        return None

    def _size_verdict(self, claim: Claim) -> tuple[str, str]:
        """Return what there is to say about a volume that has all that it asked for."""
        storage = self.spec.storage
        if claim.size_bytes <= storage.size_bytes:
            return "VolumesReady", ""
        text = (
            f"{claim.name} has {format_quantity(claim.size_bytes)}, the spec says"
            f" {format_quantity(storage.size_bytes)}"
        )
        if self._is_shrunk(claim):
            return "ShrinkRefused", f"{text}; Kubernetes cannot make a volume smaller"
        limit_bytes = storage.auto_grow.max_size_bytes if storage.auto_grow.enabled else 0
        if claim.size_bytes <= (limit_bytes or 0):
            return "VolumesReady", ""
        return "LargerThanSpec", f"{text}; it stays as it is"

    def _is_shrunk(self, claim: Claim) -> bool:
        """Whether it is the spec that was made smaller, or a Broker that took up a larger volume.

        The volume did not change since the last plan, and was not too large then.
        """
        if self.spec.storage.auto_grow.enabled or self.found.last_growth_s is not None:
            return False
        if not self.before.entry:
            born_s = seconds(self.snapshot.resource.metadata.creation_timestamp)
            return born_s is not None and claim.created_s is not None and claim.created_s < born_s
        said = previous_condition(self.snapshot.resource.status, STORAGE_READY).get("reason")
        same = self.before.bytes_of("requestedSize") == claim.request_bytes
        return same and said != "LargerThanSpec"

    def _refused_text(self, claim: Claim, change: str, words: str | None) -> str:
        start = f"{claim.name}: the API server does not take the change {change}: "
        said = self.before.entry.get("message")
        if words is None and isinstance(said, str) and said.startswith(start):
            return said  # A new leader has not asked yet; its predecessor was told this.
        return f"{start}{words or 'it has not said why'}"

    def _infeasible_text(self, claim: Claim) -> str:
        size_bytes = self.found.infeasible_bytes or claim.request_bytes
        wanted = format_quantity(size_bytes)
        said = self.before.entry.get("message")
        start = f"{claim.name} cannot have {wanted}: "
        if not claim.problem and isinstance(said, str) and said.startswith(start):
            return said  # The driver's words are gone from the claim once that has settled.
        return f"{start}{words_of(claim)}"

    def _settle(self, reason: str, message: str) -> None:
        self.found.reason, self.found.message = reason, message

    def _refuse(self, why: str) -> None:
        """Tell once that the volume should grow and cannot."""
        if why:
            self._tell_once("VolumeGrowthRefused", f"{self.found.message}: {why}")

    def _tell_once(self, reason: str, text: str) -> None:
        """Post an event if the volume's message was another one until now."""
        if self.before.entry.get("message") != message_field(self.found.message):
            notice = Notify("Warning", reason, text, self.pod_name)
            self.found.notices = (*self.found.notices, notice)

    # ---- the retention

    def _current_read_hours(self) -> int:
        """Return what the broker works with, as far as that is known; else what was shown."""
        retention = self.spec.retention
        config = self.observation.config if self.observation else None
        text = (config or {}).get(READ_HOURS_KEY)
        if text is None:
            text = str(self.before.entry.get("effectiveRetention") or "").removesuffix("h")
        try:
            hours = int(text)
        except ValueError:
            return retention.hours
        return retention.hours if hours < 0 else hours

    def _retention_changed_s(self) -> float | None:
        """Return since when the broker works with its shortened retention.

        It counts from when the broker says so: one that was too busy to be told is told again at
        once, for its disk goes on filling. The whole retention is none that was decided here: a
        broker has it after its start and after a change of the spec too.
        """
        shown = self.before.entry.get("effectiveRetention")
        is_short = self.kept_hours < self.spec.retention.hours
        if is_short and shown is not None and shown != f"{self.kept_hours}h":
            return self.snapshot.now_s
        return self.before.time_s("lastRetentionChangeTime")

    def _decide_retention(self, claim: Claim) -> None:
        numbers, found = self.reading.numbers, self.found
        retention, now_s = self.spec.retention, self.snapshot.now_s
        if numbers is None or not self.reading.is_fresh:
            return
        asked_s, changed_s = found.last_growth_s, self.retention_changed_s
        if self._has_just_grown(claim) or (asked_s is not None and now_s - asked_s < _GROWS_S):
            found.blocked = None  # Room is on its way, or the numbers do not show it yet.
        growth = Growth(blocked=found.blocked, wait_s=found.growth.wait_s)
        self.read_hours = decide_read_hours(
            RetentionCase(
                retention=retention,
                current_hours=self.kept_hours,
                numbers=numbers,
                rates=self.reading.rates,
                releases_for=self._releases,
                blocked=found.blocked,
                horizon_s=horizon_s(self.spec.storage.auto_grow, growth),
                since_change_s=None if changed_s is None else abs(now_s - changed_s),
            )
        )
        if self.read_hours != self.kept_hours and not self._has_just_refused():
            self.retention_step = self._retention_step(numbers)

    def _has_just_refused(self) -> bool:
        """Whether the broker would not take the retention a moment ago."""
        values = {READ_HOURS_KEY: self.read_hours_text()}
        refusals = self.observation.config_refusals if self.observation else ()
        return any(
            refusal.values == values
            and self.snapshot.monotonic_s - refusal.monotonic_s < ASK_AGAIN_S
            for refusal in refusals
        )

    def _retention_step(self, numbers: VolumeNumbers) -> Step:
        before, after = self.kept_hours, self.read_hours
        shorter = after < before
        text = (
            f"{self.name} keeps messages that every group has read for {after}h instead of"
            f" {before}h: {numbers.used_percent}% used, fills {rate_text(self.reading.rates.fill)}"
        )
        left_s = self._time_to_force_clean()
        if left_s is not None and left_s < SHOWN_S:
            text += f", forceClean in {time_text(left_s)}"
        if shorter and self.found.blocked is not None:
            text += f", the volume cannot grow ({self.found.blocked})"
        notice = Notify(
            "Warning" if shorter else "Normal",
            "RetentionShortened" if shorter else "RetentionRestored",
            text,
            self.pod_name,
        )
        values = {READ_HOURS_KEY: self.read_hours_text()}
        return Step("retention", (ConfigureBroker(self.pod_name, values), notice), self.name)

    def read_hours_text(self) -> str:
        """Spell the retention as the setting has it: -1 while nothing is shortened."""
        return "-1" if self.read_hours >= self.spec.retention.hours else str(self.read_hours)

    # ---- what is shown

    def steps(self) -> Iterable[Step]:
        """Return what to do, the volume's size first."""
        actions: tuple[Action, ...] = self.found.notices
        claim = self.claim
        if self.found.resize_bytes is not None and claim is not None:
            resize = ResizeClaim(
                claim.name, claim.uid, claim.resource_version, self.found.resize_bytes
            )
            if self.found.reason == "ResizeRefused":
                # That it was refused is told, however the next attempt ends.
                yield Step("volume", (resize,), self.name)
            else:
                actions = (resize, *actions)
        if actions:
            yield Step("volume", actions, self.name)
        if self.retention_step is not None:
            yield self.retention_step

    def template_bytes(self) -> int:
        """Return the size for the StatefulSet's template."""
        claim = self.claim
        if claim is None:
            return self.found.desired_bytes
        grown = claim.request_bytes <= claim.capacity_bytes
        settled = claim.size_bytes if grown else min(claim.request_bytes, claim.capacity_bytes)
        return max(self.template_live, settled or self.found.desired_bytes)

    def restart_reason(self) -> str | None:
        """Return why the pod has to be restarted for its volume; None if it has not."""
        return (
            None
            if self._restart_wait_s() != 0.0
            else (f"the file system of {self.claim_name} grows at a start only")
        )

    def is_refusing(self) -> bool:
        """Return whether the broker takes no messages because its volume is full."""
        return self.reading.is_fresh and _is_emergency(self.reading, self.spec.retention.thresholds)

    def _restart_wait_s(self) -> float | None:
        """Return in how many seconds a restart is due; None if none is foreseen."""
        claim, pod = self.claim, self.pod
        if claim is None or claim.node_pending_s is None or pod is None or is_ending(pod):
            return None
        started_s = seconds(pod["metadata"].get("creationTimestamp"))
        if started_s is None or started_s >= claim.node_pending_s:
            return None
        patience_s = _NODE_REFUSED_S if claim.node_refused else _NODE_GROWS_S
        return max(0.0, claim.node_pending_s + patience_s - self.snapshot.now_s)

    def again_after_s(self) -> float:
        """Return when this volume is worth another look."""
        waits = [self.found.again_s]
        restart_s = self._restart_wait_s()
        if restart_s:
            waits.append(restart_s)
        numbers = self.reading.numbers
        is_filling = numbers is not None and numbers.used_percent >= 50
        if is_filling or self.kept_hours < self.spec.retention.hours or not self.reading.is_fresh:
            waits.append(_OFTEN_S)
        return max(1.0, min(waits))

    def entry(self) -> StorageStatusEntry:
        """Return the volume's entry of the status."""
        claim, found, reading = self.claim, self.found, self.reading
        has_refusal = found.infeasible_bytes is not None or found.reason == "ResizeRefused"
        return StorageStatusEntry(
            pod=self.pod_name,
            claim=self.claim_name,
            capacity=_quantity(claim.capacity_bytes if claim else None),
            requested_size=_quantity(claim.request_bytes if claim else None),
            desired_size=_quantity(found.desired_bytes),
            used_percent=reading.numbers.used_percent if reading.numbers else None,
            inodes_used_percent=inodes_percent(reading),
            numbers_from=reading.source,
            active_thresholds=active_thresholds(reading),
            oldest_message_time=oldest_time(reading),
            effective_retention=f"{self.kept_hours}h",
            time_to_full=forecast_field(
                self._time_to_force_clean(in_status=True), self.before.entry.get("timeToFull")
            ),
            last_growth_time=time_field(found.last_growth_s),
            grown_from=_quantity(found.grown_from_bytes),
            message=message_field(found.message),
            infeasible_size=_quantity(found.infeasible_bytes),
            last_refusal_time=time_field(found.refusal_s if has_refusal else None),
            last_emergency_growth_time=time_field(found.last_emergency_s),
            last_retention_change_time=time_field(self.retention_changed_s),
        )

    def _time_to_force_clean(self, *, in_status: bool = False) -> float | None:
        claim, numbers = self.claim, self.reading.numbers
        if claim is None or numbers is None:
            return None
        case = self._growth_case(claim, numbers)
        return shown_time_to_force_clean(case) if in_status else time_to_force_clean(case)


def _is_emergency(reading: Reading, thresholds: ThresholdsSpec) -> bool:
    """Whether writes are refused or there is no room for one more."""
    numbers = reading.numbers
    if numbers is None:
        return False
    if reading.is_fresh and reading.retention is not None:
        active = reading.retention.get("active") or {}
        if reading.retention.get("refusal") or active.get("reject_writes"):
            return True
    level = thresholds.reject_writes
    limit_bytes = level_bytes(numbers, level.percent, level.free_size_bytes)
    return numbers.used_bytes > limit_bytes or numbers.available_bytes < MEBIBYTE


def _pod_on(pod: Manifest | None, claim: str) -> Manifest | None:
    """Return the pod if it is on the claim: what runs on another volume says nothing here."""
    for volume in ((pod or {}).get("spec") or {}).get("volumes") or ():
        source = volume.get("persistentVolumeClaim") or {}
        if volume.get("name") == VOLUME and source.get("claimName") == claim:
            return pod
    return None


def _previous_entry(status: Mapping[str, Any], pod: str) -> Mapping[str, Any]:
    for entry in status.get("storage") or ():
        if entry.get("pod") == pod:
            return dict(entry)
    return {}


def _quantity(size_bytes: int | None) -> str | None:
    return format_quantity(size_bytes) if size_bytes else None
