"""Which pod may be taken down now."""

from typing import Any

import pytest

from mailboat_operator.planner.actions import Delete, Evict, Notify
from mailboat_operator.planner.pods import is_starting, runs_nothing, seconds, trouble
from mailboat_operator.planner.progress import progress_finding, roll_notices, rollout_step
from mailboat_operator.planner.rollout import Member, Roll, plan_roll
from mailboat_operator.planner.snapshot import EvictionRefusal

NOW_S = seconds("2026-01-01T01:00:00Z") or 0.0
LONG_AGO = "2026-01-01T00:00:00Z"
RUNNING: dict[str, Any] = {"state": {"running": {}}, "started": True}
STARTING: dict[str, Any] = {"state": {"running": {}}, "started": False}
PULLING: dict[str, Any] = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
CREATING: dict[str, Any] = {"state": {"waiting": {"reason": "ContainerCreating"}}}
CRASHED: dict[str, Any] = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
}


def pod(
    name: str,
    revision: str = "new",
    container: dict[str, Any] | None = RUNNING,
    *,
    ready: bool = True,
    since: str = LONG_AGO,
    **metadata: Any,
) -> dict[str, Any]:
    """Return a pod as the kubelet reports it."""
    labels = {"controller-revision-hash": revision}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, **metadata},
        "spec": {"containers": [{"name": "broker", "image": "mailboat:2"}]},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "lastTransitionTime": since,
                }
            ],
            "containerStatuses": [{"name": "broker", **container}] if container else [],
        },
    }


def member(name: str, *arguments: Any, missing: bool = False, **options: Any) -> Member:
    """Return a pod with its StatefulSet; the options of a Member may be given too."""
    names = (
        "awaits", "behind", "hold", "is_steady", "is_urgent", "refusal", "registered",
        "restart_reason", "start_idle_s", "unfit",
    )  # fmt: skip
    of_member = {key: options.pop(key) for key in names if key in options}
    return Member(
        name=name,
        pod=None if missing else pod(name, *arguments, **options),
        stateful_set={
            "metadata": {"name": name, "generation": 2},
            "status": {"observedGeneration": 2, "updateRevision": "new"},
        },
        **({"is_steady": True} | of_member),
    )


def roll(*members: Member) -> Roll:
    """Decide for some pods."""
    return plan_roll(members, now_s=NOW_S, settle_s=30.0)


def taken(*members: Member) -> list[str]:
    """Return which pods are taken down."""
    return [deletion.name for deletion in roll(*members).deletions]


def test_nothing_is_taken_down_when_all_is_new():
    """Pods of the present template stay."""
    assert roll(member("a"), member("b")) == Roll()


def test_one_pod_at_a_time():
    """The first outdated pod goes; it is named by its uid."""
    plan = roll(member("a", "old"), member("b", "old"))
    assert plan.deletions == (Evict("a", "uid-a", "its template has changed"),)
    assert plan.outdated == ("a", "b")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (member("b", missing=True), "b does not exist"),
        (member("b", ready=False), "b is not ready"),
        (member("b", "new", STARTING, ready=False), "b is starting"),
        (member("b", "new", CREATING, ready=False), "b is not ready"),
        (member("b", deletionTimestamp=LONG_AGO), "b is ending"),
        (member("b", unfit="is recovering"), "b is recovering"),
        (member("b", since="2026-01-01T00:59:45Z"), "just become ready"),
        (member("b", is_steady=False), "StatefulSet of b"),
    ],
)
def test_a_pod_waits_for_every_other_one(other, says):
    """Each other pod has to be there, ready, fit, and known to clients again."""
    plan = roll(member("a", "old"), other)
    assert plan.deletions == ()
    assert plan.outdated == ("a",)
    assert says in (plan.waiting or "")
    assert plan.again_after_s is not None


def test_a_leader_goes_behind_its_followers():
    """Also where one of them may not go: each roll changes the leader once."""
    leader = member("b", "old", behind=frozenset({"a"}))
    assert taken(member("a", "old"), leader) == ["a"]
    assert taken(leader, member("a", "old")) == ["a"]
    plan = roll(member("a", "old", hold="its claim is being deleted"), leader)
    assert (plan.deletions, plan.waiting) == ((), "b goes behind a")
    assert taken(member("a"), leader) == ["b"]


def test_a_pod_that_others_await_is_taken_although_they_are_not_ready():
    """It is deleted, as its budget counts them; all others have to be ready all the same."""
    waiting = member("b", ready=False, awaits="a")
    plan = roll(member("a", "old"), waiting)
    assert [type(item) for item in plan.deletions] == [Delete]
    assert roll(member("a", "old"), waiting, member("c", ready=False)).waiting == "c is not ready"
    plan = roll(member("a", "old"), waiting, member("c", unfit="is recovering"))
    assert (plan.deletions, plan.waiting) == ((), "c is recovering")
    assert roll(member("a", "old"), member("b", ready=False)).waiting == "b is not ready"


def test_the_wait_for_clients_ends_by_itself():
    """The next look comes when the time is over; then the pod goes."""
    plan = roll(member("a", "old"), member("b", since="2026-01-01T00:59:45Z"))
    assert plan.again_after_s == 15.0
    assert taken(member("a", "old"), member("b", since="2026-01-01T00:59:30Z")) == ["a"]


def test_a_clock_far_ahead_holds_nothing_up():
    """A node whose clock is hours ahead does not stop the roll for hours."""
    assert taken(member("a", "old"), member("b", since="2026-01-01T05:00:00Z")) == ["a"]


def test_a_pod_that_is_itself_unfit_may_go_while_the_others_are_fine():
    """What is unfit about the pod that goes holds nothing up; the fit one waits."""
    assert taken(member("a", "old"), member("b", "old", unfit="is not registered")) == ["b"]


def test_an_old_pod_that_never_ran_goes_at_once():
    """It serves nobody and never did: it does not wait for the others, nor for a roll that is
    blocked, and is deleted, not evicted."""
    others = member("b", ready=False), member("c", "old")
    gone = Delete("Pod", "a", "uid-a", None, False, "its template has changed")
    for container in (PULLING, CREATING, None):
        old = member("a", "old", container, ready=False)
        assert roll(old, *others).deletions == (gone,)
        plan = roll(old, member("b", "new", PULLING, ready=False), member("c", "old"))
        assert plan.deletions == (gone,)
        assert plan.blocked == "b: ImagePullBackOff: mailboat:2"


def test_all_old_pods_that_never_ran_go_together():
    """With a fixed image, every pod that the bad one kept from its first run comes up without a
    queue."""
    assert taken(
        member("a", "old", PULLING, ready=False), member("b", "old", PULLING, ready=False)
    ) == ["a", "b"]


def between_runs(restarts: int = 1, reason: str = "CrashLoopBackOff") -> dict[str, Any]:
    """Return a container that has run, and does not at the moment."""
    return {
        "state": {"waiting": {"reason": reason}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        "restartCount": restarts,
    }


@pytest.mark.parametrize(
    "container",
    [
        between_runs(),
        between_runs(99),
        between_runs(3, "ContainerCreating"),
        between_runs(99, "ImagePullBackOff"),
        {"state": {"terminated": {"exitCode": 255, "reason": "Unknown"}}, "restartCount": 1},
    ],
    ids=["killed", "often killed", "rebooted", "image gone", "ended"],
)
def test_while_blocked_nothing_that_ever_ran_is_touched(container):
    """Whatever an old pod's container does in between: its template worked once, the new one does
    not."""
    broken = member("a", "new", PULLING, ready=False)
    old = [member(name, "old", container, ready=False) for name in ("b", "c")]
    plan = roll(broken, *old)
    assert plan.deletions == ()
    assert plan.blocked == "a: ImagePullBackOff: mailboat:2"
    assert plan.outdated == ("b", "c")


def test_a_container_between_two_runs_is_not_dead():
    """A pod that has served gets its container back from the kubelet; the roll waits."""
    for container in (between_runs(), between_runs(4), between_runs(1, "ContainerCreating")):
        plan = roll(member("a", "old", container, ready=False), member("b", "old"))
        assert plan.deletions == ()
        assert plan.waiting == "a is not ready"
    just_now = "2026-01-01T00:55:30Z"
    often = member("a", "old", between_runs(9), ready=False, since=just_now)
    assert taken(often, member("b", "old")) == []


def test_a_pod_that_crashes_for_long_goes():
    """Five ends and five minutes: what it runs is no good any more, and a new template may be."""
    dead = member("a", "old", between_runs(5), ready=False, since="2026-01-01T00:55:00Z")
    assert taken(dead, member("b", "old")) == ["a"]


def test_a_pod_that_never_served_and_ends_goes_soon():
    """A template that crashed from the first run on is left as soon as there is another one."""
    never = member("a", "old", CRASHED, ready=False)
    assert never.pod is not None
    never.pod["status"]["startTime"] = LONG_AGO
    assert taken(never, member("b", "old")) == ["a"]
    never.pod["status"]["startTime"] = "2025-12-31T23:00:00Z"  # It was ready in between.
    assert taken(never, member("b", "old")) == []


@pytest.mark.parametrize("container", [between_runs(5), between_runs(1, "ImagePullBackOff")])
def test_pods_that_ran_and_are_dead_go_one_after_the_other(container):
    """The present template has to prove itself on one of them before the next one goes."""
    dead = [member(name, "old", container, ready=False) for name in ("b", "c")]
    assert taken(member("a", "old", container, ready=False), *dead) == ["a"]
    for first in (
        member("a", missing=True),
        member("a", "new", CREATING, ready=False),
        member("a", "new", STARTING, ready=False),
    ):
        assert taken(first, *dead) == []
    assert taken(member("a"), *dead) == ["b"]


def test_a_broken_new_pod_stops_the_roll():
    """A bad template takes one pod down, and the reason is said; no healthy pod follows."""
    plan = roll(member("a", "new", PULLING, ready=False), member("b", "old"))
    assert plan.deletions == ()
    assert plan.blocked == "a: ImagePullBackOff: mailboat:2"
    crashed = roll(member("a", "new", CRASHED, ready=False), member("b", "old"))
    assert crashed.blocked == "a: CrashLoopBackOff: the container ended with code 3 (Error)"


def test_a_pod_without_a_node_is_named_with_the_reason():
    """Impossible resources are shown as the scheduler says it."""
    lonely = pod("a", container=None, ready=False)
    lonely["status"]["conditions"].append(
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: Insufficient memory.",
        }
    )
    assert trouble(lonely) == "Unschedulable: 0/3 nodes are available: Insufficient memory."
    assert runs_nothing(lonely)


def test_a_crash_is_seen_between_two_tries_too():
    """A container that runs again for a moment is still one that cannot start."""
    again = STARTING | {"lastState": {"terminated": {"exitCode": 1}}}
    assert "code 1" in (trouble(pod("a", container=again, ready=False)) or "")
    assert trouble(pod("a", container=again, ready=True)) is None


def test_a_pod_that_repairs_its_store_is_never_taken():
    """A start that takes an hour goes on, whatever the template says meanwhile."""
    plan = roll(member("a", "old", STARTING, ready=False), member("b", "old"))
    assert plan.deletions == ()
    assert plan.waiting == "a is starting"
    assert is_starting(pod("a", container=STARTING))


def test_a_pod_that_stopped_serving_goes_first():
    """Started, not ready for a while, and outdated: it goes although another is not fit."""
    stuck = member("b", "old", ready=False)
    assert taken(member("a", "old", unfit="is not registered"), stuck) == ["b"]


def test_a_moment_of_unreadiness_is_waited_out():
    """A pod that has just stopped being ready gets its time."""
    blink = member("b", "old", ready=False, since="2026-01-01T00:59:50Z")
    assert taken(member("a"), blink) == []


def test_two_pods_that_stopped_serving_go_one_after_the_other():
    """The second waits until the first has started again."""
    second = member("b", "old", ready=False)
    assert taken(member("a", "old", ready=False), second) == ["a"]
    assert taken(member("a", "new", STARTING, ready=False), second) == []


@pytest.mark.parametrize(
    ("mine", "theirs", "says"),
    [
        ({"ns-0", "ns-1"}, {"ns-0", "ns-1"}, None),
        ({"ns-0"}, {"ns-0", "ns-1"}, None),
        ({"ns-0", "ns-1"}, {"ns-0"}, "b is not registered at ns-1"),
        (set(), {"ns-0"}, None),
    ],
)
def test_the_others_are_found_wherever_the_one_that_goes_is(mine, theirs, says):
    """A name server that no broker is registered at holds nothing up; one that would know no other
    broker does."""
    plan = roll(
        member("a", "old", registered=frozenset(mine)), member("b", registered=frozenset(theirs))
    )
    assert [item.name for item in plan.deletions] == ([] if says else ["a"])
    assert plan.waiting == says


def test_a_wait_without_end_is_a_roll_that_is_blocked():
    """After ten minutes in which no pod has changed the wait is told; it goes on all the same."""
    members = member("a", "old"), member("b", unfit="is registered at no name server (ns-1)")
    waits = "b is registered at no name server (ns-1)"

    def at(since_s: float | None, *others: Member) -> str | None:
        plan = plan_roll([*members, *others], now_s=NOW_S, settle_s=30.0, waits_since_s=since_s)
        assert plan.waiting == waits
        return plan.blocked

    assert at(None) is None
    assert at(NOW_S - 599.0) is None
    assert at(NOW_S - 600.0) == waits
    assert at(0.0) == waits
    assert at(0.0, member("c", since="2026-01-01T00:55:00Z")) is None
    assert at(0.0, member("c", since="2026-01-01T00:50:00Z")) == waits
    # A clock that is ahead says nothing.
    assert at(0.0, member("c", since="2026-01-01T05:00:00Z")) == waits


def test_a_refused_eviction_is_asked_for_again_and_told():
    """The disruption budget has the last word; when it says no for long, the roll is blocked."""
    refused = member("a", "old", refusal=EvictionRefusal("Cannot evict pod")), member("b")
    plan = roll(*refused)
    assert [item.name for item in plan.deletions] == ["a"]
    assert plan.waiting == "a may not go now: Cannot evict pod"
    assert (plan.blocked, plan.again_after_s) == (None, 15.0)
    late = plan_roll(refused, now_s=NOW_S, settle_s=30.0, waits_since_s=NOW_S - 900.0)
    assert late.blocked == "a may not go now: Cannot evict pod"
    assert [item.name for item in late.deletions] == ["a"]
    assert progress_finding(refused, late, {}).reason == "RollBlocked"


def test_a_second_disruption_budget_blocks_at_once_and_has_a_reason_of_its_own():
    """No eviction is allowed until somebody removes it: that is said without patience, told once,
    and asked for seldom."""
    words = "more than one PodDisruptionBudget selects the pod"
    refused = member("a", "old", refusal=EvictionRefusal(words, has_many_budgets=True)), member("b")
    for waits_since_s in (None, NOW_S - 900.0):
        plan = plan_roll(refused, now_s=NOW_S, settle_s=30.0, waits_since_s=waits_since_s)
        assert [item.name for item in plan.deletions] == ["a"]
        assert plan.again_after_s == 60.0
        finding = progress_finding(refused, plan, {})
        assert (finding.holds, finding.reason) == (False, "BudgetsOverlap")
        assert finding.message == f"a may not go now: {words}"
    (told,) = [act for step in roll_notices(finding, {}) for act in step.actions]
    assert (told.type, told.reason, told.message) == ("Warning", "BudgetsOverlap", finding.message)
    before = {"conditions": [{"type": "Progressing", "reason": "BudgetsOverlap"}]}
    assert roll_notices(finding, before) == []
    # Removed: the roll goes on as the one that it was.
    free = roll(member("a", "old"), member("b"))
    assert progress_finding(refused, free, before).reason == "Rolling"
    (step,) = rollout_step(free, before)
    assert [act.reason for act in step.actions if isinstance(act, Notify)] == ["PodRestarted"]


def hanging(name: str, revision: str = "old", *, since: str = LONG_AGO, **options: Any) -> Member:
    """Return a pod whose container runs since a time and has not started."""
    container = STARTING | {"state": {"running": {"startedAt": since}}}
    return member(name, revision, container, ready=False, **options)


def test_a_start_that_hangs_on_an_old_template_is_replaced():
    """By its own word after ten minutes without progress; if it says nothing, after two hours."""
    assert taken(hanging("a", start_idle_s=600.0), member("b", "old")) == ["a"]
    assert taken(hanging("a", start_idle_s=599.0), member("b", "old")) == []
    assert taken(hanging("a", since="2025-12-31T23:00:00Z"), member("b", "old")) == ["a"]
    assert taken(hanging("a", since="2025-12-31T23:00:01Z"), member("b", "old")) == []
    # One that recovers a large store for a day, and says so.
    recovering = hanging("a", since="2025-12-30T00:00:00Z", start_idle_s=5.0)
    assert taken(recovering, member("b", "old")) == []


def test_starts_that_hang_are_replaced_one_after_the_other():
    """The second one waits for the first one's new start, and is no obstacle to it."""
    second = hanging("b", start_idle_s=900.0)
    assert taken(hanging("a", start_idle_s=900.0), second) == ["a"]
    assert taken(member("a", missing=True), second) == []
    assert taken(hanging("a", "new", start_idle_s=0.0), second) == []
    assert taken(member("a"), second) == ["b"]


def test_a_start_that_hangs_on_the_present_template_blocks_the_roll():
    """A new one would hang as well: it is told, and nobody follows."""
    plan = roll(hanging("a", "new", start_idle_s=600.0), member("b", "old"))
    assert plan.deletions == ()
    assert plan.blocked == "a is starting and has made no progress for 10 minutes"
    silent = roll(hanging("a", "new", since="2025-12-31T23:00:00Z"), member("b", "old"))
    assert silent.blocked == "a has been starting for more than 2 hours"
    recovering = hanging("a", "new", start_idle_s=5.0)
    assert roll(recovering, member("b", "old")).blocked is None


@pytest.mark.parametrize(
    "other",
    [
        member("b", unfit="is registered at no name server (ns-1)"),
        member("b", registered=frozenset()),
        member("b", since="2026-01-01T00:59:59Z"),
        member("b", "new", PULLING, ready=False),
        member("b", "old", between_runs(), ready=False),
        member("b", is_steady=False),
    ],
)
def test_a_restart_that_a_full_volume_waits_for_passes_the_gate(other):
    """The broker takes no messages until then, so nobody loses anything by it."""
    full = member("a", restart_reason="the volume", is_urgent=True, registered=frozenset({"ns-0"}))
    plan = roll(full, other)
    assert plan.deletions == (Delete("Pod", "a", "uid-a", None, False, "the volume"),)


@pytest.mark.parametrize(
    "other",
    [
        member("b", missing=True),
        member("b", deletionTimestamp=LONG_AGO),
        hanging("b", "new", since="2026-01-01T00:59:00Z"),
    ],
)
def test_two_full_brokers_are_restarted_one_after_the_other(other):
    """The next one goes when the last one has had time to come back."""
    assert taken(member("a", restart_reason="the volume", is_urgent=True), other) == []


def test_a_full_broker_is_not_restarted_onto_a_template_that_does_not_start():
    """It serves its consumers; with the new template it would do nothing."""
    full = member("a", "old", restart_reason="the volume", is_urgent=True)
    assert taken(full, member("b", "new", PULLING, ready=False)) == []
    assert taken(full, member("b", unfit="is recovering")) == ["a"]


def test_nothing_is_taken_while_kubernetes_has_not_seen_the_change():
    """The revision of a StatefulSet counts only once its status is of its generation."""
    stale = member("a", "old")
    assert stale.stateful_set is not None
    stale.stateful_set["status"]["observedGeneration"] = 1
    assert roll(stale, member("b")).deletions == ()
    unknown = member("a", "old")
    assert unknown.stateful_set is not None
    unknown.stateful_set["status"] = {}
    assert roll(unknown).deletions == ()


def test_nothing_is_taken_while_the_stateful_set_is_to_change():
    """A pod that goes now would have to go again."""
    assert taken(member("a", "old", is_steady=False)) == []
    assert taken(member("a", "old", PULLING, ready=False, is_steady=False)) == []


def test_a_restart_for_the_volume_goes_through_the_same_gate():
    """A file system that grows at a start only: one pod, with the others ready."""
    waiting = member("a", restart_reason="the volume grows at a start")
    plan = roll(waiting, member("b"))
    assert [item.reason for item in plan.deletions] == ["the volume grows at a start"]
    assert taken(waiting, member("b", ready=False)) == []


def test_one_restart_serves_two_reasons():
    """A new template and a volume's growth are one deletion."""
    assert taken(member("a", "old", restart_reason="the volume")) == ["a"]


@pytest.mark.parametrize(
    "state",
    [
        member("a", "old", hold="its claim is being deleted"),
        member("a", "old", PULLING, ready=False, hold="its claim is being deleted"),
        member("a", "old", ready=False, hold="its claim is being deleted"),
        member("a", restart_reason="the volume", hold="its claim is being deleted"),
    ],
)
def test_a_pod_that_is_held_is_taken_for_no_reason(state):
    """Neither a new template nor a volume nor being broken is worth what its end would cost."""
    plan = roll(state, member("b"))
    assert plan.deletions == ()
    assert plan.outdated == ("a",)
    assert plan.waiting == "a is not restarted: its claim is being deleted"


def test_a_pod_that_is_held_holds_up_no_other():
    """The roll goes on with the next one; nobody is taken while the held one does not serve."""
    held = member("a", "old", hold="its claim is being deleted")
    assert taken(held, member("b", "old")) == ["b"]
    unready = member("a", "old", ready=False, hold="its claim is being deleted")
    assert taken(unready, member("b", "old")) == []


def test_a_pod_that_is_ending_is_not_deleted_again():
    """One restart per change: the deletion is under way."""
    assert taken(member("a", "old", deletionTimestamp=LONG_AGO)) == []
