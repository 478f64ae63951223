"""Tests of the table of rights."""

from itertools import product

from operator_samples import sample_broker

from mailboat_operator.kinds import CHILD_KINDS, CUSTOM_KINDS, watched_kinds
from mailboat_operator.rbac import CLUSTER_RULES, LEASE_RULES, NAMESPACED_RULES
from mailboat_operator.resources.replication import replicas_role

_ALL = (*NAMESPACED_RULES, *LEASE_RULES, *CLUSTER_RULES)


def _verbs(group: str, resource: str) -> set[str]:
    return {
        verb
        for rule in _ALL
        if (rule.group, rule.resource) == (group, resource)
        for verb in rule.verbs
    }


def test_everything_that_is_watched_may_be_watched() -> None:
    """Each watched kind is listed and watched; storage classes only in the whole cluster."""
    for kind in watched_kinds(is_cluster_wide=True):
        assert {"list", "watch"} <= _verbs(kind.group, kind.plural)
    namespaced = {rule.resource for rule in NAMESPACED_RULES}
    assert {kind.plural for kind in watched_kinds(is_cluster_wide=False)} <= namespaced
    assert "storageclasses" not in namespaced


def test_status_is_patched_and_nothing_is_taken_in_whole() -> None:
    """Each custom resource's status may be patched; no wildcard, Secrets are known by name only and
    never listed, and Roles give no more than the operator itself may: Kubernetes sees to that
    without these verbs."""
    for kind in CUSTOM_KINDS:
        assert _verbs(kind.group, f"{kind.plural}/status") == {"patch"}
    for rule in _ALL:
        assert "*" not in (rule.group, rule.resource, *rule.verbs)
        assert rule.resource not in ("clusterroles", "clusterrolebindings")
        assert not {"bind", "escalate", "impersonate"} & set(rule.verbs)
        assert rule.resource != "secrets" or rule.verbs == ("get", "create", "patch")
        assert rule.purpose


def test_the_operator_may_do_what_it_lets_the_replicas_do() -> None:
    """Kubernetes lets nobody make a Role of more than he may do himself."""
    role = replicas_role(sample_broker(replicas=3), ["orders-g0"])
    for rule in role["rules"]:
        assert rule["resourceNames"]
        for group, resource in product(rule["apiGroups"], rule["resources"]):
            assert set(rule["verbs"]) <= {
                verb
                for own in NAMESPACED_RULES
                if (own.group, own.resource) == (group, resource)
                for verb in own.verbs
            }


def test_data_is_never_deleted() -> None:
    """Claims may grow; neither they nor volumes nor custom resources may be deleted."""
    for kind in (*CUSTOM_KINDS, *CHILD_KINDS):
        if kind in CUSTOM_KINDS or kind.kind == "PersistentVolumeClaim":
            assert "delete" not in _verbs(kind.group, kind.plural)


def test_no_rule_is_written_twice() -> None:
    """Each resource has one rule in its scope."""
    for rules in (NAMESPACED_RULES, LEASE_RULES, CLUSTER_RULES):
        places = [(rule.group, rule.resource) for rule in rules]
        assert len(places) == len(set(places))
