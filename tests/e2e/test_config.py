"""Configuration: live keys reach the running broker, others roll it, unknown ones are reported."""

from __future__ import annotations

from e2e_kube import Namespace, wait_until
from e2e_resources import BROKER, REPLICAS, start_broker, wait_config

SELECTOR = f"mailboat.dev/broker={BROKER}"


def test_live_restart_and_unknown_keys(namespace: Namespace) -> None:
    """A live key keeps the pod, a restart key replaces it, an unknown key is a condition."""
    start_broker(namespace)
    uids = namespace.pod_uids(SELECTOR)
    namespace.patch("broker", BROKER, {"spec": {"retention": {"hours": 48}}})
    wait_config(namespace, "fileReservedTime", "48")
    namespace.patch("broker", BROKER, {"spec": {"config": {"flushIntervalCommitLog": "250"}}})
    wait_config(namespace, "flushIntervalCommitLog", "250")
    namespace.wait_condition(
        "broker", BROKER, "ConfigApplied", status="True", reason="Applied", timeout_s=60
    )
    assert namespace.pod_uids(SELECTOR) == uids

    namespace.patch("broker", BROKER, {"spec": {"config": {"flushDiskType": "SYNC_FLUSH"}}})
    wait_until("a new pod", lambda: namespace.pod_uids(SELECTOR) not in ({}, uids), 90)
    wait_config(namespace, "flushDiskType", "SYNC_FLUSH", timeout_s=60 * REPLICAS)
    namespace.wait_condition(
        "broker", BROKER, "Progressing", status="False", reason="Settled", timeout_s=60 * REPLICAS
    )
    namespace.wait_ready("broker", BROKER)

    uids = namespace.pod_uids(SELECTOR)
    namespace.patch("broker", BROKER, {"spec": {"config": {"flushDiskTipe": "SYNC_FLUSH"}}})
    condition = namespace.wait_condition(
        "broker", BROKER, "ConfigApplied", status="False", reason="UnknownKey", timeout_s=60
    )
    assert "flushDiskTipe" in condition["message"]
    assert "flushDiskType" in condition["message"], "the nearest key is named"
    assert namespace.pod_uids(SELECTOR) == uids
    assert namespace.condition("broker", BROKER, "Ready")["status"] == "True"
