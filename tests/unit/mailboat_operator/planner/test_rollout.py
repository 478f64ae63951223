"""Which pod may be taken down now."""

from typing import Any

import pytest

from mailboat_operator.planner.pods import is_starting, runs_nothing, seconds, trouble
from mailboat_operator.planner.rollout import Member, Roll, plan_roll

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
    names = ("is_steady", "unfit", "restart_reason", "hold")
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
    (deletion,) = plan.deletions
    assert (deletion.kind, deletion.name, deletion.uid) == ("Pod", "a", "uid-a")
    assert deletion.resource_version is None
    assert not deletion.orphan
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


def test_a_broken_old_pod_goes_at_once():
    """A pod in which nothing runs serves nobody: it does not wait for the others."""
    others = member("b", ready=False), member("c", "old")
    assert taken(member("a", "old", PULLING, ready=False), *others) == ["a"]
    assert taken(member("a", "old", CRASHED, ready=False), *others) == ["a"]
    assert taken(member("a", "old", None, ready=False), *others) == ["a"]


def test_all_broken_old_pods_go_together():
    """With a fixed image, every pod that the bad one kept down comes up without a queue."""
    assert taken(
        member("a", "old", PULLING, ready=False), member("b", "old", PULLING, ready=False)
    ) == ["a", "b"]


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
