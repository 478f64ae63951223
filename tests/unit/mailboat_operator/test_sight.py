"""Tests of what the operator may see."""

import logging

import pytest

from mailboat_operator.sight import Sight


def test_a_refusal_is_told_once_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """A watch is refused every few seconds: one line says so, and one more when it comes anew."""
    sight = Sight()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            sight.refused("Pod", "bank", "pods is forbidden")
        assert [record.getMessage() for record in caplog.records] == [
            "namespace bank is not served while its Pod cannot be read: pods is forbidden"
        ]
        with caplog.at_level(logging.INFO):
            sight.refused("Service", "bank", "services is forbidden")
            assert caplog.records.pop().levelno == logging.INFO
        assert sight.granted("Service", "bank")
        assert sight.granted("Pod", "bank")
        assert not sight.granted("Pod", "bank")
        sight.refused("Pod", "bank", "pods is forbidden")
    assert len(caplog.records) == 2


def test_what_can_be_done_without() -> None:
    """One of several namespaces, and what belongs to none; not a kind of all namespaces."""
    assert Sight.is_bearable("Pod", "bank")
    assert Sight.is_bearable("StorageClass", None)
    assert not Sight.is_bearable("Pod", None)
