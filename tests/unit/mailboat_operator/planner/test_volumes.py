"""Volumes grow, are adopted and are reported; none shrinks, and none holds up another."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from volume_world import GIB, HOUR_S, MIB, START_S, World, time_text

from mailboat_operator.planner.actions import ConfigureBroker, ResizeClaim
from mailboat_operator.planner.snapshot import ConfigRefusal

GROWS = {"enabled": True, "maxSize": "40Gi", "cooldown": "1h"}


def filling_at_max_size() -> World:
    """Return a volume at maxSize that has just been seen full of messages that are read."""
    world = World(autoGrow=GROWS | {"maxSize": "10Gi"})
    see_it_filling(world)
    return world


def see_it_filling(world: World) -> None:
    """Let the broker say now that 84 % are used, by segments of 140 MiB an hour."""
    now_ms = int(world.now_s * 1000)
    segments = [
        {
            "size_bytes": 140 * MIB,
            "last_timestamp_ms": now_ms - age * HOUR_S * 1000,
            "is_read": True,
        }
        for age in range(60, -1, -1)
    ]
    world.use(84, per_s=140 * MIB / HOUR_S, segments=segments)


def at_rest(world: World) -> None:
    """Check that the same world planned again changes nothing."""
    status = world.status
    plan = world.plan()
    assert plan.steps == ()
    world.turn()
    assert world.status == status


def test_volumes_as_wanted_need_nothing() -> None:
    """Every volume has its size: nothing is done, and the conditions say so."""
    world = World(groups=2)
    for pod in world.pods:
        world.use(40, pod=pod)
    plan = world.turn()
    assert plan.steps == ()
    assert (plan.storage_ready.holds, plan.storage_ready.reason) == (True, "VolumesReady")
    assert (plan.disk_pressure.holds, plan.disk_pressure.reason) == (False, "Enough")
    assert plan.template_size_bytes == {"orders-g0": 10 * GIB, "orders-g1": 10 * GIB}
    assert plan.live_values["orders-g0-0"] == {"readFileReservedTime": "-1"}
    assert (plan.disk, plan.retention, plan.restarts) == ("40%", "72h", {})
    assert world.entry == {
        "pod": "orders-g0-0",
        "claim": "data-orders-g0-0",
        "capacity": "10Gi",
        "requestedSize": "10Gi",
        "desiredSize": "10Gi",
        "usedPercent": 40,
        "inodesUsedPercent": 2,
        "numbersFrom": "broker",
        "oldestMessageTime": "2023-11-14T22:00:00Z",
        "effectiveRetention": "72h",
    }
    at_rest(world)


def test_larger_spec_grows_each_claim_for_itself() -> None:
    """Both claims are asked to grow, by their own uid and version, in a step of their own."""
    world = World(groups=2)
    world.spec["storage"]["size"] = "12Gi"
    world.refuses.add("data-orders-g0-0")
    plan = world.turn()
    assert [(step.name, step.subject) for step in plan.steps] == [
        ("volume", "orders-g0"),
        ("volume", "orders-g1"),
    ]
    assert world.resizes == [
        ResizeClaim(f"data-orders-g{group}-0", f"uid-data-orders-g{group}-0", "7", 12 * GIB)
        for group in range(2)
    ]
    # The refused one told nobody that it grows.
    assert [event.message for event in world.events] == [
        "data-orders-g1-0 grows from 10Gi to 12Gi: spec.storage.size is larger"
    ]
    # The template follows a claim only once that has grown.
    assert plan.template_size_bytes == {"orders-g0": 10 * GIB, "orders-g1": 10 * GIB}
    world.refuses.clear()
    plan = world.turn(after_s=5)
    assert [action.name for action in world.resizes[2:]] == ["data-orders-g0-0"]
    assert plan.storage_ready.reason == "Resizing"
    assert plan.storage_ready.holds is False
    for claim in world.claims:
        world.finish_growth(claim)
    plan = world.turn(after_s=5)
    assert plan.template_size_bytes == {"orders-g0": 12 * GIB, "orders-g1": 12 * GIB}
    assert world.reasons()[-2:] == ["VolumeGrown", "VolumeGrown"]
    assert plan.storage_ready.reason == "VolumesReady"
    at_rest(world)


def test_growth_that_the_api_refuses_is_tried_ever_less() -> None:
    """A minute of attempts, then one in five minutes, and a condition that says where to look."""
    world = World()
    world.spec["storage"]["size"] = "12Gi"
    world.refuses.add("data-orders-g0-0")
    for _ in range(240):
        world.turn(after_s=15)
    assert len(world.resizes) <= 5 + 12
    assert len(world.resizes) >= 12
    assert world.status["conditions"][0]["reason"] == "ResizeRefused"
    assert world.reasons().count("VolumeGrowing") == 0
    (refusal,) = [event for event in world.events if event.reason == "VolumeGrowthRefused"]
    assert refusal.type == "Warning"
    assert "does not take the change from 10Gi to 12Gi" in refusal.message
    world.refuses.clear()
    for _ in range(21):
        world.turn(after_s=15)
    assert world.request() == 12 * GIB
    world.finish_growth()
    world.turn(after_s=15)
    assert world.status["conditions"][0]["reason"] == "VolumesReady"
    assert "lastRefusalTime" not in world.entry


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"classes": {}}, "ClassCannotGrow"),
        ({"classes": {"fast": {"allowVolumeExpansion": False}}}, "ClassCannotGrow"),
        ({"classes": {"fast": {}}}, "ClassCannotGrow"),
        ({"classes": None}, "Resizing"),
        ({"class_name": None}, "ClassCannotGrow"),
        ({"phase": "Pending"}, "VolumesPending"),
        ({"ending": True}, "ClaimDeleted"),
        ({"ending": True, "podless": True}, "VolumesPending"),
        ({"missing": True}, "VolumesPending"),
    ],
)
def test_what_keeps_a_spec_from_being_followed(change: dict[str, Any], reason: str) -> None:
    """Each has its reason; the other group grows all the same."""
    world = World(groups=2)
    world.spec["storage"]["size"] = "12Gi"
    if "classes" in change:
        world.classes = change["classes"]
    if "class_name" in change:
        world.claim["spec"]["storageClassName"] = None
    if "phase" in change:
        world.claim["status"]["phase"] = "Pending"
    if "ending" in change:
        world.claim["metadata"]["deletionTimestamp"] = time_text(START_S)
    if "podless" in change:
        del world.pods["orders-g0-0"]
    if "missing" in change:
        del world.claims["data-orders-g0-0"]
    plan = world.turn()
    grown = {action.name for action in world.resizes}
    assert ("data-orders-g0-0" in grown) == (reason == "Resizing")
    assert ("data-orders-g1-0" in grown) == ("classes" not in change or reason == "Resizing")
    assert plan.storage_ready.reason == reason
    assert "data-orders-g0-0" in plan.storage_ready.message
    if reason == "ClassCannotGrow":
        assert plan.template_size_bytes["orders-g0"] == 10 * GIB


def test_full_volume_grows_by_itself() -> None:
    """81 % of 10 Gi: 12 Gi, an event with the numbers, and the time in the status."""
    world = World(autoGrow=GROWS)
    world.use(81, per_s=MIB / 10)
    world.turn()
    assert world.request() == 12 * GIB
    assert [event.message for event in world.events[:1]] == [
        "data-orders-g0-0 grows from 10Gi to 12Gi: 81% used, fills at 102.4 KiB/s, forceClean in 1h"
    ]
    assert world.entry["lastGrowthTime"] == time_text(START_S)
    assert world.entry["desiredSize"] == "12Gi"
    # Under way: nothing more is asked for, and nothing is deleted early for it.
    world.use(84, per_s=MIB / 100)
    plan = world.turn(after_s=15)
    assert len(world.resizes) == 1
    assert plan.storage_ready.reason == "Resizing"
    world.finish_growth()
    world.use(70)
    plan = world.turn(after_s=15)
    assert plan.storage_ready.reason == "VolumesReady"
    assert plan.template_size_bytes["orders-g0"] == 12 * GIB
    at_rest(world)


def test_cooldown_outlives_the_operator() -> None:
    """Full again within the cooldown: it waits for it, by the time in the status alone."""
    world = World(autoGrow=GROWS)
    world.use(81)
    world.turn()
    world.finish_growth()
    world.use(82)
    for _ in range(10):
        world.turn(after_s=60)
        world.use(82)
    assert len(world.resizes) == 1
    # It is counted from when the volume was larger.
    world.clock.advance(HOUR_S - 570)
    world.use(82)
    world.turn()
    assert len(world.resizes) == 1
    world.clock.advance(30)
    world.use(82)
    world.turn()
    assert [resize.size_bytes for resize in world.resizes] == [12 * GIB, 14_746 * MIB]


def test_without_cooldown_the_next_growth_waits_for_the_numbers_alone() -> None:
    """Full again 6 s after a growth: it grows as soon as the broker tells of the larger volume."""
    world = World(autoGrow={**GROWS, "cooldown": "0s"})
    world.use(81)
    world.turn()
    world.finish_growth()
    world.turn(after_s=2)
    assert world.entry["grownFrom"] == "10Gi"
    # These are still the numbers of 10 Gi.
    world.turn(after_s=2)
    assert len(world.resizes) == 1
    world.use(81)
    world.turn(after_s=2)
    assert [resize.size_bytes for resize in world.resizes] == [12 * GIB, 14_746 * MIB]


def test_conflict_does_not_use_up_the_cooldown() -> None:
    """A growth whose write failed is asked for again with the same size."""
    world = World(autoGrow=GROWS)
    world.use(81)
    world.refuses.add("data-orders-g0-0")
    world.turn()
    world.refuses.clear()
    world.turn(after_s=10)
    assert [resize.size_bytes for resize in world.resizes] == [12 * GIB, 12 * GIB]
    assert world.entry["lastGrowthTime"] == time_text(START_S)


def test_emergency_grows_once_within_the_cooldown() -> None:
    """Writes are refused after a growth: one more growth at once, then the cooldown holds."""
    world = World(autoGrow=GROWS)
    world.use(81)
    world.turn()
    world.finish_growth()
    world.turn(after_s=15)
    for _ in range(20):
        world.clock.advance(60)
        world.use(95)
        world.turn()
        if world.request() != world.capacity("data-orders-g0-0"):
            world.finish_growth()
    assert len(world.resizes) == 2
    assert "lastEmergencyGrowthTime" in world.entry


def test_at_max_size_read_messages_go_earlier() -> None:
    """At maxSize: the condition, one event, and the retention of read messages comes down."""
    world = filling_at_max_size()
    plan = world.turn()
    assert world.resizes == []
    assert (plan.storage_ready.holds, plan.storage_ready.reason) == (True, "AtMaxSize")
    # 102 MiB are left for 840 MiB in six hours. After t hours segments of age h - t and more are
    # gone: 102 + 140 (61 - h + 5) - 840 >= 0 gives h <= 60.7.
    assert world.configured == [ConfigureBroker("orders-g0-0", {"readFileReservedTime": "60"})]
    assert world.reasons() == [
        "VolumeGrowthRefused", "RetentionShortened", "DiskPressureRaised"]  # fmt: skip
    assert "60h instead of 72h: 84% used, fills at 39.8 KiB/s" in world.events[1].message
    assert "(AtMaxSize)" in world.events[1].message
    plan = world.turn()
    assert world.entry["effectiveRetention"] == "60h"
    assert plan.retention == "60h"
    at_rest(world)
    # Room again: restored, but not at once.
    world.clock.advance(600)
    world.use(20)
    world.turn()
    assert world.entry["effectiveRetention"] == "60h"
    world.clock.advance(1800)
    world.use(20)
    world.turn()
    assert world.configured[-1].values == {"readFileReservedTime": "-1"}
    assert "RetentionRestored" in world.reasons()
    assert world.turn().retention == "72h"
    assert "DiskPressureCleared" in world.reasons()


def test_the_retention_is_decided_while_the_claim_is_being_deleted() -> None:
    """The broker serves for as long as its pod runs, and its disk goes on filling."""
    world = filling_at_max_size()
    world.claim["metadata"]["deletionTimestamp"] = time_text(START_S)
    world.turn()
    assert world.resizes == []
    assert world.configured == [ConfigureBroker("orders-g0-0", {"readFileReservedTime": "60"})]
    assert world.reasons()[:2] == ["ClaimDeleted", "RetentionShortened"]


def test_a_broker_that_is_too_busy_to_be_told_is_told_again_at_once() -> None:
    """The status shows what it works with, and the pause begins when it has taken it over."""
    world = filling_at_max_size()
    world.busy.add("orders-g0-0")
    for _ in range(3):
        plan = world.turn(after_s=15)
        assert (plan.retention, world.entry["effectiveRetention"]) == ("72h", "72h")
        assert "lastRetentionChangeTime" not in world.entry
    assert len(world.configured) == 3
    assert "RetentionShortened" not in world.reasons()
    world.busy.clear()
    world.turn(after_s=15)
    assert world.reasons().count("RetentionShortened") == 1
    world.turn(after_s=15)
    assert world.entry["effectiveRetention"] == "60h"
    assert world.entry["lastRetentionChangeTime"] == time_text(world.now_s)
    assert len(world.configured) == 4


def test_a_broker_that_was_restarted_is_told_anew_at_once() -> None:
    """It starts with the whole retention; the pause between two decisions is not for that."""
    world = filling_at_max_size()
    world.turn()
    world.turn(after_s=15)
    assert world.entry["effectiveRetention"] == "60h"
    seen = world.observations["orders-g0-0"]
    world.observations["orders-g0-0"] = replace(seen, config={"readFileReservedTime": "-1"})
    world.clock.advance(300)
    see_it_filling(world)
    world.turn()
    assert [action.values["readFileReservedTime"] for action in world.configured] == ["60", "60"]


def test_a_retention_that_the_broker_refuses_is_sent_once_a_minute() -> None:
    """It is not asked at every turn what it has just refused."""
    world = filling_at_max_size()
    refusal = ConfigRefusal({"readFileReservedTime": "60"}, "no", world.monotonic_s)
    sent = []
    for after_s in (15, 44, 1):
        world.clock.advance(after_s)
        see_it_filling(world)
        seen = world.observations["orders-g0-0"]
        world.observations["orders-g0-0"] = replace(seen, config_refusals=(refusal,))
        assert world.turn().live_values["orders-g0-0"] == {"readFileReservedTime": "60"}
        sent.append(len(world.configured))
    assert sent == [0, 0, 1]


def test_bounds_that_moved_hold_at_once() -> None:
    """hours below what the broker works with: the live value goes down before hours is sent."""
    world = World()
    world.observations["orders-g0-0"] = replace(
        world.observations["orders-g0-0"], config={"readFileReservedTime": "60"}
    )
    world.use(10)
    world.spec["retention"] = {"hours": 48, "minHours": 12}
    world.turn()
    assert world.configured == [ConfigureBroker("orders-g0-0", {"readFileReservedTime": "-1"})]


def test_infeasible_size_is_taken_back_and_remembered() -> None:
    """The driver cannot make it: sizes in between are tried, then it rests with its words."""
    world = World(autoGrow=GROWS | {"step": "4Gi"})
    world.use(81)
    world.turn()
    limit = 11 * GIB
    for _ in range(40):
        if world.request() > world.capacity("data-orders-g0-0"):
            if world.request() > limit:
                world.refuse_growth("rpc error: 15032385536 is above the limit of 11Gi")
            else:
                world.finish_growth()
        world.use(81)
        world.turn(after_s=15)
    sizes = [resize.size_bytes for resize in world.resizes]
    assert sizes[:3] == [14 * GIB, 12 * GIB, 11 * GIB]
    assert world.capacity("data-orders-g0-0") == 11 * GIB
    count = len(sizes)
    assert count < 12
    # The cooldown keeps it from trying again for an hour; then what is known to fail is left out.
    world.clock.advance(HOUR_S)
    for _ in range(40):
        world.use(81)
        world.turn(after_s=15)
        if world.request() > limit:
            world.refuse_growth("rpc error: 15032385536 is above the limit of 11Gi")
    assert all(resize.size_bytes < 12 * GIB for resize in world.resizes[count:])
    assert len(world.resizes) - count < 8
    assert world.status["conditions"][0]["reason"] == "ResizeInfeasible"
    assert "is above the limit of 11Gi" in world.status["conditions"][0]["message"]
    rest = len(world.resizes)
    for _ in range(20):
        world.use(81)
        world.turn(after_s=15)
    assert len(world.resizes) == rest
    assert world.reasons().count("VolumeGrowthRefused") <= rest


def test_infeasible_spec_is_not_followed_until_later() -> None:
    """The spec's size cannot be made: asked for once, taken back, asked for again after hours."""
    world = World()
    world.spec["storage"]["size"] = "300Gi"
    world.turn()
    world.refuse_growth("too large")
    plan = world.turn(after_s=15)
    lowest = 10 * GIB + MIB
    assert world.request() == lowest
    assert plan.storage_ready.message == "data-orders-g0-0 cannot have 300Gi: too large"
    assert world.entry["infeasibleSize"] == "300Gi"
    world.refuse_growth("too large, even that")
    for _ in range(100):
        world.turn(after_s=200)
    assert [resize.size_bytes for resize in world.resizes] == [300 * GIB, lowest]
    assert world.status["conditions"][0]["reason"] == "ResizeInfeasible"
    world.turn(after_s=2 * HOUR_S)
    assert world.resizes[-1].size_bytes == 300 * GIB


def test_driver_that_fails_for_now_is_waited_for() -> None:
    """An error that is not final: the request stays, the provider's words are shown."""
    world = World()
    world.spec["storage"]["size"] = "12Gi"
    world.turn()
    world.claim["status"]["conditions"] = [
        {"type": "ControllerResizeError", "status": "True", "message": "quota exceeded"}
    ]
    plan = world.turn(after_s=15)
    assert plan.storage_ready.reason == "ResizeRefused"
    assert "quota exceeded" in plan.storage_ready.message
    at_rest(world)


@pytest.mark.parametrize(
    ("since_s", "refused", "pod_started_s", "restarts"),
    [
        (179, False, -85_000, False),
        (180, False, -85_000, True),
        (14, True, -85_000, False),
        (15, True, -85_000, True),
        (180, True, -100, False),  # Started after that already: never a second time.
    ],
)
def test_pod_is_restarted_for_a_file_system_that_grows_offline(
    since_s: int, refused: bool, pod_started_s: int, restarts: bool
) -> None:
    """The kubelet gets its time first; a pod that was started since is left alone."""
    world = World()
    world.set_request("12Gi")
    world.wait_for_node(START_S - since_s, refused=refused)
    started = time_text(START_S + pod_started_s)
    world.pods["orders-g0-0"]["metadata"]["creationTimestamp"] = started
    plan = world.plan()
    assert list(plan.restarts) == (["orders-g0-0"] if restarts else [])
    if not restarts and pod_started_s < -1000:
        assert plan.again_after_s <= 180
        world.pods["orders-g0-0"]["metadata"]["deletionTimestamp"] = time_text(START_S)
        world.clock.advance(500)
        assert world.plan().restarts == {}


def test_volume_grown_by_hand_is_adopted() -> None:
    """It is told and stays; the next template has its size; nothing is asked for."""
    world = World()
    world.use(40)
    world.turn()
    world.set_request("20Gi")
    world.finish_growth()
    world.turn(after_s=15)
    plan = world.turn(after_s=15)
    assert world.resizes == []
    assert (plan.storage_ready.holds, plan.storage_ready.reason) == (True, "LargerThanSpec")
    assert "has 20Gi, the spec says 10Gi" in plan.storage_ready.message
    assert plan.template_size_bytes == {"orders-g0": 20 * GIB}


def test_smaller_spec_is_refused() -> None:
    """A spec that was made smaller changes no volume and says so, unless autoGrow explains it."""
    world = World()
    world.use(40)
    world.turn()
    world.spec["storage"]["size"] = "5Gi"
    world.turn(after_s=15)
    plan = world.turn(after_s=15)
    assert world.resizes == []
    assert (plan.storage_ready.holds, plan.storage_ready.reason) == (True, "ShrinkRefused")
    assert plan.template_size_bytes == {"orders-g0": 10 * GIB}
    world.spec["storage"]["autoGrow"] = GROWS
    assert world.plan().storage_ready.reason == "VolumesReady"


def test_broker_that_takes_up_a_larger_volume() -> None:
    """A Broker made anew with a smaller size on an old volume: ShrinkRefused, and it works."""
    world = World()
    world.spec["storage"]["size"] = "5Gi"
    world.claim["metadata"]["creationTimestamp"] = time_text(START_S - 90_000)
    assert world.plan().storage_ready.reason == "ShrinkRefused"


@pytest.mark.parametrize(
    ("silent_s", "kubelet", "grows", "words"),
    [
        (30, None, False, None),
        (300, None, True, "carried forward, say 81% used"),
        (300, 50, True, "carried forward, say 81% used"),
        (700, 85, True, "by the kubelet's count 85% is used"),
        (700, 50, False, "by the kubelet's count 50% is used"),
        (700, None, False, "not answered for 10 minutes"),
    ],
)
def test_broker_that_does_not_answer(
    silent_s: int, kubelet: int | None, grows: bool, words: str | None
) -> None:
    """Stale numbers are Unknown; growth goes on by the forecast, then the kubelet's numbers."""
    world = World(autoGrow=GROWS | {"whenFullWithin": "1m"})
    # 0.7 % of 10 Gi are 73 MiB; in 300 s at 0.27 MiB/s that is 80.0 -> 80.8 %.
    world.use(79.5 if silent_s > 30 else 70, per_s=0.35 * MIB)
    world.silence(kubelet_percent=kubelet)
    plan = world.turn(after_s=silent_s)
    assert bool(world.resizes) == grows
    pressure = plan.disk_pressure
    if words is None:
        assert pressure.reason == "Enough"
    else:
        assert (pressure.holds, pressure.reason) == (None, "NumbersStale")
        assert words in pressure.message
    assert world.configured == []


def test_pressure_is_told_when_it_rises_and_when_it_goes() -> None:
    """Each level has its reason, each change one event."""
    world = World()
    told = []
    for percent in (50, 76, 77, 86, 91, 91, 70):
        world.use(percent, per_s=0.0)
        plan = world.turn(after_s=15)
        told.append((percent, plan.disk_pressure.reason, plan.disk_pressure.holds))
    assert told == [
        (50, "Enough", False),
        (76, "Expiring", True),
        (77, "Expiring", True),
        (86, "ForceCleaning", True),
        (91, "RejectingWrites", True),
        (91, "RejectingWrites", True),
        (70, "Enough", False),
    ]
    raised = [reason for reason in world.reasons() if reason.startswith("DiskPressure")]
    assert raised == ["DiskPressureRaised"] * 3 + ["DiskPressureCleared"]


def test_pod_on_another_volume_says_nothing() -> None:
    """Numbers of a pod that mounts another claim are not taken for this one's."""
    world = World(autoGrow=GROWS)
    world.use(95)
    volume = world.pods["orders-g0-0"]["spec"]["volumes"][0]
    volume["persistentVolumeClaim"]["claimName"] = "data-other-g0-0"
    plan = world.turn()
    assert world.resizes == []
    assert plan.disk_pressure.reason == "NumbersStale"


def test_missing_claim_keeps_the_template() -> None:
    """A claim that is gone comes back with the size that the volume had."""
    world = World()
    del world.claims["data-orders-g0-0"]
    world.template_sizes["orders-g0"] = "16Gi"
    assert world.plan().template_size_bytes == {"orders-g0": 16 * GIB}


def test_forecast_in_the_status_hardly_moves() -> None:
    """A forecast that shrinks by minutes is not written every time."""
    world = World()
    shown = []
    for step in range(40):
        world.use(50 + step * 0.1, per_s=0.02 * MIB)
        world.turn(after_s=15)
        shown.append(world.entry["timeToFull"])
    # 3.5 GiB at 0.02 MiB/s are 49.8 h.
    assert shown[0] == "2d"
    assert len(set(shown)) == 1


@pytest.mark.parametrize("minutes", [1, 2, 3, 4])
def test_a_file_that_is_made_once_is_no_forecast(minutes: int) -> None:
    """By the rate of five minutes it would fill the volume within days, and then never."""
    world = World()
    world.use(50)
    seen = world.observations["orders-g0-0"]
    before = [
        replace(sample, used_bytes=sample.used_bytes - 3 * MIB)
        for sample in seen.samples[:-minutes]
    ]
    samples = (*before, *seen.samples[-minutes:])
    world.observations["orders-g0-0"] = replace(seen, samples=samples)
    world.turn()
    assert world.entry.get("timeToFull") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["use", "finish", "refuse", "hand", "silent", "spec", "wait"]),
            st.integers(0, 100),
        ),
        max_size=25,
    ),
    st.booleans(),
)
def test_no_volume_ever_shrinks(events: list[tuple[str, int]], auto_grow: bool) -> None:
    """Whatever happens: capacity never falls, sizes stay in bounds, and planning again rests."""
    world = World(autoGrow=GROWS) if auto_grow else World()
    template = 0
    for event, amount in events:
        name, capacity = "data-orders-g0-0", world.capacity("data-orders-g0-0")
        match event:
            case "use":
                world.use(amount, per_s=amount * 1000.0)
            case "finish" if world.request() > capacity:
                world.finish_growth()
            case "refuse" if world.request() > capacity:
                world.refuse_growth()
            case "hand" if amount > 90:
                world.set_request(str(max(world.request(), capacity) + GIB))
            case "silent":
                world.silence(kubelet_percent=amount)
            case "spec":
                world.spec["storage"]["size"] = f"{10 + amount // 20}Gi"
            case _:
                world.clock.advance(amount * 60)
        before = max(world.request(), world.capacity(name))
        seen = len(world.resizes)
        plan = world.turn(after_s=15)
        for resize in world.resizes[seen:]:
            assert resize.size_bytes > world.capacity(name)
            if resize.size_bytes < before:
                assert "allocatedResourceStatuses" in world.claim["status"]
            else:
                assert resize.size_bytes <= max(40 * GIB, before + MIB)
        for action in world.configured:
            value = int(action.values["readFileReservedTime"])
            assert value == -1 or 12 <= value <= 72
        assert plan.template_size_bytes["orders-g0"] >= template
        template = plan.template_size_bytes["orders-g0"]
        world.template_sizes["orders-g0"] = str(template)
        again = world.plan()
        assert not [
            action for step in again.steps for action in step.actions
            if isinstance(action, ResizeClaim | ConfigureBroker)
        ]  # fmt: skip
