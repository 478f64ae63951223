"""Tests of mailboat.client.refusals; remarks are those of RocketMQ's brokers and of ours."""

import logging

import pytest

from mailboat.client import refusals
from mailboat.client.refusals import Refusals, is_denied, pause_s
from mailboat.errors import BrokerError, ConnectError, MailboatError
from mailboat.testing.virtual_time import VirtualTime

ACL_1 = (
    "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=bob, "
    "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:1)"
)
DENIED = [
    (16, "User:bob has no permission to access Topic:T from 10.0.0.1, no matched policies."),
    (16, "User:bob has no permission to access Topic:T from 10.0.0.1, the decision is deny."),
    (16, "Authentication failed. Please verify the credentials and try again."),
    (16, "check signature failed."),
    (16, "User:bob is not found."),
    (16, "User:bob is disabled."),
    (16, "username cannot be null."),
    (16, "authorization context is empty."),
    (16, ""),
    (1, ACL_1),
]
NOT_DENIED = [
    (16, "the topic[T] sending message is forbidden"),
    (16, "the broker broker-a pulling message is forbidden: its brokerPermission"),
    (16, "subscription group no permission, G"),
    (16, "the consumer group[G] can not consume by broadcast way"),
    (16, "brokerIP1 cannot be changed in a running broker; nothing was changed."),
    (1, "no consumer for this group, G"),
    (1, ""),
    (17, "topic[T] not exist"),
    (2, "[TIMEOUT_CLEAN_QUEUE]"),
]


@pytest.mark.parametrize(("code", "remark"), DENIED)
def test_what_depends_on_who_asks(code: int, remark: str) -> None:
    """Both generations of ACL; the next try is later than after other failures."""
    error = BrokerError(code, remark)
    assert is_denied(error)
    assert pause_s(error, 1.0) == 10.0


@pytest.mark.parametrize(("code", "remark"), NOT_DENIED)
def test_what_nobody_may_do_now(code: int, remark: str) -> None:
    """The same codes stand for what has nothing to do with users."""
    error = BrokerError(code, remark)
    assert not is_denied(error)
    assert pause_s(error, 1.0) == 1.0


def test_no_answer_is_no_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """It is left to the caller to be told."""
    told = Refusals()
    for error in (ConnectError("10.0.0.1:1"), MailboatError("x"), BrokerError(17, "no topic")):
        assert not told.tell("pull topic=T", error)
    assert caplog.records == []


def test_each_subject_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The next time it says how often it happened in between."""
    clock = VirtualTime()
    told = Refusals(clock=clock.monotonic)
    error = BrokerError(16, "User:bob is disabled.")
    for after_s, subject in ((0, "T"), (1, "T"), (58.9, "T"), (0, "U")):
        clock.advance(after_s)
        assert told.tell(f"pull topic={subject}", error)
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "refused, tried again later pull topic=T",
        "refused, tried again later pull topic=U",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    caplog.clear()
    clock.advance(0.1)
    assert told.tell("pull topic=T", error)
    assert "2 times more in between" in caplog.text


def test_the_table_of_subjects_is_bounded() -> None:
    """Names come from outside too."""
    told = Refusals()
    for number in range(3 * refusals._MOST_SUBJECTS):
        told.tell(f"pull topic={number}", BrokerError(16, ""))
        assert len(told._told) <= refusals._MOST_SUBJECTS
