"""Names of topics and groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import IllegalMessageError
from mailboat.model import names


@pytest.mark.parametrize(
    "topic", ["T", "orders-2026_x", "%RETRY%group", "%DLQ%group", "a|b", "t" * 127]
)
def test_legal_topics(topic: str) -> None:
    """Everything that RocketMQ's own check takes."""
    names.check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "is empty"),
        ("t" * 128, "at most 127"),
        ("%RETRY%" + "g" * 249, "at most 255"),
        ("a b", "illegal character"),
        ("a/b", "illegal character"),
        ("a.b", "illegal character"),
        ("../x", "illegal character"),
        ("订单", "illegal character"),
        ("a\n", "illegal character"),
        ("a\0", "illegal character"),
    ],
)
def test_illegal_topics(topic: str, reason: str) -> None:
    """A name that could leave the store's folder or no client could use; the sentence says why."""
    with pytest.raises(IllegalMessageError, match=f"topic name .*{reason}"):
        names.check_topic(topic)


def test_groups() -> None:
    """Groups follow the same rules up to 255 characters."""
    names.check_group("g" * 255)
    for group in ("", "g" * 256, "a b"):
        with pytest.raises(IllegalMessageError, match="group"):
            names.check_group(group)


@given(st.text(max_size=300))
def test_any_name_is_legal_or_a_documented_error(name: str) -> None:
    """What passes is made of safe characters only."""
    try:
        names.check_topic(name)
    except IllegalMessageError as exc:
        assert "\n" not in str(exc)
        return
    allowed = set("%|abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert 0 < len(name) <= 255
    assert set(name) <= allowed


def test_derived_names() -> None:
    """Retry and dead-letter topics carry the group's name."""
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.is_retry_or_dlq("%RETRY%g")
    assert names.is_retry_or_dlq("%DLQ%g")
    assert not names.is_retry_or_dlq("g%RETRY%")


def test_system_topics() -> None:
    """The broker's own topics are known, by list or by prefix."""
    for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer"):
        assert names.is_system_topic(topic)
    assert not names.is_system_topic("orders")
    assert "SCHEDULE_TOPIC_XXXX" in names.SEND_FORBIDDEN_TOPICS
    assert "TBW102" not in names.SEND_FORBIDDEN_TOPICS
