"""Conditions keep their time as long as they keep their status."""

from mailboat_operator.crds.status import BrokerStatus, status_manifest
from mailboat_operator.errors import InvalidResourceError
from mailboat_operator.planner.broker_status import invalid_status
from mailboat_operator.planner.conditions import (
    INVALID_SPEC,
    READY,
    REASONS,
    Finding,
    build_conditions,
)


def written(holds: bool | None, message: str, now_s: float, before: dict) -> dict:
    """Return the status with one condition, as it is written."""
    finding = Finding(READY, holds, "PodsNotReady", message)
    conditions = build_conditions([finding], before, generation=3, now_s=now_s)
    return status_manifest(BrokerStatus(conditions=conditions))


def test_the_time_moves_only_with_the_status():
    """Another message is no transition; another status is."""
    first = written(False, "a", 1000.0, {})
    assert first["conditions"] == [
        {
            "type": "Ready",
            "status": "False",
            "reason": "PodsNotReady",
            "message": "a",
            "lastTransitionTime": "1970-01-01T00:16:40Z",
            "observedGeneration": 3,
        }
    ]
    second = written(False, "b", 2000.0, first)["conditions"][0]
    assert second["lastTransitionTime"] == "1970-01-01T00:16:40Z"
    third = written(None, "b", 3000.0, first)["conditions"][0]
    assert (third["status"], third["lastTransitionTime"]) == ("Unknown", "1970-01-01T00:50:00Z")


def test_the_same_again_is_the_same():
    """Writing at rest changes nothing, whatever the time."""
    first = written(True, "a", 1000.0, {})
    assert written(True, "a", 9000.0, first) == first


def test_every_reason_is_explained_in_one_sentence():
    """The list is what docs and tests go by."""
    for reasons in REASONS.values():
        for reason, sentence in reasons.items():
            assert reason.isalpha()
            assert sentence.endswith(".")


def test_a_spec_that_cannot_be_read_keeps_the_rest_of_the_status():
    """Ready says what to mend; what was known of the pods stays."""
    previous = {
        "ready": "1/1",
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "x"},
            {"type": "Progressing", "status": "False"},
        ],
    }
    error = InvalidResourceError("Broker shop/orders", "spec.groups", "must be at least 1")
    status = invalid_status(previous, error, generation=4, now_s=0.0)
    assert status["ready"] == "1/1"
    assert status["observedGeneration"] == 4
    ready, progressing = status["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", INVALID_SPEC)
    assert "spec.groups" in ready["message"]
    assert progressing == {"type": "Progressing", "status": "False"}
