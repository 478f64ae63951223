"""Tests of the table of rights."""

from mailboat_operator.kinds import CHILD_KINDS, CUSTOM_KINDS, watched_kinds
from mailboat_operator.rbac import CLUSTER_RULES, LEASE_RULES, NAMESPACED_RULES

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
    """Each custom resource's status may be patched; no wildcard, no secret, no rights on rights."""
    for kind in CUSTOM_KINDS:
        assert _verbs(kind.group, f"{kind.plural}/status") == {"patch"}
    for rule in _ALL:
        assert "*" not in (rule.group, rule.resource, *rule.verbs)
        assert rule.resource not in ("secrets", "roles", "rolebindings", "clusterroles")
        assert rule.purpose


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
