"""Run last: what the operator asked the API server for all this time, beside its rights."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from e2e_operator import ApiCall, audit_log

_RULES = Path(__file__).parents[2] / "charts" / "mailboat" / "files" / "operator-rules.yaml"
# Nobody can give a right away that he does not have: the replicas write their slice, not we.
_TO_GIVE_AWAY = {("discovery.k8s.io", "endpointslices", "update")}
# Groups with replicas that go, and replicas that are given up before they began: the model cluster
# of the unit tests has both, no test here.
_OF_RARE_ENDS = {
    ("coordination.k8s.io", "leases", "delete"),
    ("rbac.authorization.k8s.io", "rolebindings", "delete"),
    ("rbac.authorization.k8s.io", "roles", "delete"),
}


def _granted() -> set[tuple[str, str, str]]:
    document = yaml.safe_load(_RULES.read_text())
    return {
        (group, resource, verb)
        for part in document.values()
        for rule in part
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _of(call: ApiCall) -> tuple[str, str, str]:
    return call.group, call.resource, call.verb


@pytest.mark.alone
def test_the_rights_are_exactly_what_was_used(installed: str) -> None:
    """No call was forbidden, and there is no right that no test made use of."""
    log = audit_log(installed)
    log.rewind()
    calls = list(log.calls())
    assert calls, "the audit log has nothing of the operator"
    # A call that comes when its namespace is on the way out is refused as well, with 403.
    granted = _granted()
    used = {_of(call) for call in calls if call.code != 403}
    # A server-side apply that makes an object is logged as a patch and needs both rights.
    made = [call for call in calls if call.verb == "patch" and call.code == 201]
    used |= {(call.group, call.resource, "create") for call in made}
    forbidden = {_of(call) for call in calls if call.code == 403} - granted
    assert forbidden == set()
    assert {call for call in used if call[0] != "authorization.k8s.io"} <= granted
    # The kubelet itself is asked, and so it is in no log of the API server.
    expected = {("", "nodes/stats", "get")} | _TO_GIVE_AWAY | _OF_RARE_ENDS
    assert granted - used <= expected, "rights that nothing used"
