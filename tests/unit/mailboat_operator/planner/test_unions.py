"""What somebody else chose beside ours is told from what may stay."""

from typing import Any

import pytest

from mailboat_operator.planner.unions import leftovers


def found(wanted: Any, live: Any) -> list[str]:
    """Return the leftovers, each spelled as one text."""
    return [".".join(path) for path in leftovers(wanted, live)]


def container(**more: Any) -> dict[str, Any]:
    """Return a pod with one container."""
    return {"containers": [{"name": "a", **more}]}


@pytest.mark.parametrize(
    ("wanted", "live", "left"),
    [
        ({"maxUnavailable": 1}, {"minAvailable": 2}, ["minAvailable"]),
        ({"maxUnavailable": 1}, {"maxUnavailable": 2}, []),
        (
            {"updateStrategy": {"type": "OnDelete"}},
            {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}},
            ["updateStrategy.rollingUpdate"],
        ),
        (
            {"seccompProfile": {"type": "RuntimeDefault"}},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}},
            ["seccompProfile.localhostProfile"],
        ),
        (
            container(livenessProbe={"httpGet": {"port": 1}, "periodSeconds": 1}),
            container(livenessProbe={"tcpSocket": {"port": 1}, "successThreshold": 1}),
            ["containers.[a].livenessProbe.tcpSocket"],
        ),
        (
            container(env=[{"name": "B", "value": "1"}]),
            container(env=[{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {}}]),
            ["containers.[a].env.[B].valueFrom"],
        ),
        (
            container(env=[{"name": "B", "valueFrom": {"secretKeyRef": {"name": "s"}}}]),
            container(env=[{"name": "B", "valueFrom": {"fieldRef": {}}}]),
            ["containers.[a].env.[B].valueFrom.fieldRef"],
        ),
        (
            {"volumes": [{"name": "v", "configMap": {"name": "c"}}]},
            {"volumes": [{"name": "v", "nfs": {"path": "/"}}, {"name": "w", "emptyDir": {}}]},
            ["volumes.[v].nfs"],
        ),
        (
            {"volumes": [{"name": "v", "configMap": {"name": "c"}}]},
            {"volumes": [{"name": "v", "configMap": {"name": "d", "defaultMode": 420}}]},
            [],
        ),
        (
            container(resources={"requests": {"cpu": "2"}}),
            container(resources={"limits": {"cpu": "1500m", "memory": "1Gi"}}),
            [],
        ),
        (
            {"data": {"broker.conf": "x"}},
            {"data": {"more": "y"}, "binaryData": {"broker.conf": "eA==", "other": "eA=="}},
            ["binaryData.broker.conf"],
        ),
        ({"tolerations": [{"value": "x"}]}, {"tolerations": [{"valueFrom": 1}]}, []),
    ],
)
def test_only_what_excludes_ours_is_left_over(wanted: Any, live: Any, left: list[str]) -> None:
    """Kubernetes' validation takes one of the two; all else that is live may stay."""
    assert found(wanted, live) == left
