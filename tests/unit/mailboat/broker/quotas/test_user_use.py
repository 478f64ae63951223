"""What one user may use: the arithmetic of sends and pulls, by a clock that the test moves."""

import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.broker.quotas.user_use import SEND_WAIT_MAX_S, Room, UserUse
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.connection import Connection
from mailboat.security.quotas import Quotas
from mailboat.testing.virtual_time import START_S, VirtualTime


class Peer:
    """Stands for a connection, of which only the identity counts here."""


def use_of(clock: VirtualTime, **quotas: int) -> UserUse:
    """Return a user with quotas who has used nothing."""
    use = UserUse("u", clock.monotonic, lambda _use, _quota: None)
    use.change(Quotas(**quotas))
    return use


def test_a_batch_needs_both_quotas_and_takes_from_neither_when_one_refuses() -> None:
    """What is refused costs nothing."""
    clock = VirtualTime()
    use = use_of(clock, publish_messages_per_second=10, publish_bytes_per_second=1_000)
    assert use.publish(None, 5, 1_000, may_wait=False) == 0.0
    with pytest.raises(BrokerError) as caught:
        use.publish(None, 1, 100, may_wait=False)
    assert caught.value.code == ResponseCode.FLOW_CONTROL
    assert "may send 1000 (publishBytesPerSecond)" in caught.value.remark
    assert dict(use.refused) == {"publishBytesPerSecond": 1}
    # Five messages are still there, and no byte.
    assert use.publish(None, 5, 0, may_wait=False) == 0.0
    assert use.publish(None, 1, 100, may_wait=True) == pytest.approx(0.1)


def test_an_answer_waits_a_second_at_most() -> None:
    """The time grows by what each takes; what is refused does not make it longer."""
    clock = VirtualTime()
    use = use_of(clock, publish_messages_per_second=8)
    waits = [use.publish(None, 1, 0, may_wait=True) for _ in range(16)]
    assert waits == [0.0] * 8 + [n / 8 for n in range(1, 9)]
    for _ in range(3):
        with pytest.raises(BrokerError):
            use.publish(None, 1, 0, may_wait=True)
    clock.advance(0.125)
    assert use.publish(None, 1, 0, may_wait=True) == 1.0


_sends = st.lists(
    st.tuples(st.floats(0.0, 0.5), st.integers(1, 40), st.integers(0, 400), st.booleans()),
    min_size=1,
    max_size=150,
)


@given(_sends)
def test_never_more_than_the_quota(sends: list[tuple[float, int, int, bool]]) -> None:
    """Stored is no more than a second's worth beyond what was answered, which keeps to the rate."""
    clock = VirtualTime()
    use = use_of(clock, publish_messages_per_second=20, publish_bytes_per_second=200)
    rates = (20, 200)
    stored: list[tuple[float, float, tuple[int, int]]] = []
    for pause_s, messages, size_bytes, may_wait in sends:
        clock.advance(pause_s)
        try:
            wait_s = use.publish(None, messages, size_bytes, may_wait=may_wait)
        except BrokerError:
            continue
        assert wait_s <= (SEND_WAIT_MAX_S if may_wait else 0.0)
        now_s = clock.monotonic()
        stored.append((now_s, now_s + wait_s, (messages, size_bytes)))
    for kind, rate in enumerate(rates):
        burst = max([rate, *(amounts[kind] for _, _, amounts in stored)])
        for moment, slack_s in ((0, SEND_WAIT_MAX_S), (1, 0.0)):
            total = 0.0
            for one in sorted(stored, key=lambda one, moment=moment: one[moment]):  # type: ignore[misc]
                total += one[2][kind]
                allowed = rate * (cast(float, one[moment]) - START_S + slack_s) + burst
                assert total <= allowed + 1e-6


def test_pulls_get_what_there_is_room_for() -> None:
    """A tenth of a second's worth, or a message; then they wait for what they have had."""
    clock = VirtualTime()
    use = use_of(clock, fetch_messages_per_second=100, fetch_bytes_per_second=10_000)
    assert use.fetch_wait_s() == 0.0
    assert use.room() == Room(100, 10_000)
    use.fetched(95, 4_000)
    assert use.room() == Room(5, 6_000)
    assert use.fetch_wait_s() == pytest.approx(0.05)
    clock.advance(0.06)
    assert use.fetch_wait_s() == 0.0
    use.fetched(1, 30_000)
    assert use.room().size_bytes == 1
    assert use.fetch_wait_s() == pytest.approx((30_000 - 6_600 + 1_000) / 10_000)
    use.given_back(1, 30_000)
    assert use.fetch_wait_s() == 0.0


@given(
    rate=st.integers(1, 1_000),
    largest=st.integers(1, 32),
    times=st.lists(st.floats(0.0, 0.3), min_size=1, max_size=100),
)
def test_readers_get_the_quota_and_a_message_more(
    rate: int, largest: int, times: list[float]
) -> None:
    """They never get more, and one that always asks gets no less than the rate."""
    clock = VirtualTime()
    use = use_of(clock, fetch_messages_per_second=rate)
    total = 0
    for pause_s in times:
        clock.advance(pause_s)
        if use.fetch_wait_s() == 0.0:
            count = min(largest, use.room().messages)
            use.fetched(count, 0)
            total += count
        assert total <= rate * (clock.monotonic() - START_S) + rate + 1e-6
    clock.advance(use.fetch_wait_s() + 1e-6)
    assert use.fetch_wait_s() <= 1e-5


def test_room_is_boundless_without_quotas() -> None:
    """And nothing waits."""
    use = use_of(VirtualTime(), connections=1)
    use.fetched(10**9, 10**12)
    assert use.fetch_wait_s() == 0.0
    assert min(use.room()) > 2**31
    assert use.publish(None, 10**9, 10**12, may_wait=False) == 0.0
    assert math.isfinite(use.fetch_wait_s())


def test_connections_and_pulls_are_counted() -> None:
    """Also where they are not bounded: a quota may come later."""
    use = use_of(VirtualTime(), publish_messages_per_second=1)
    for _ in range(3):
        use.admit(cast(Connection, Peer()))
        use.pull_held()
    use.change(Quotas(connections=3, held_pulls=3))
    with pytest.raises(BrokerError, match="has 3 connections"):
        use.admit(cast(Connection, Peer()))
    with pytest.raises(BrokerError, match="3 pulls of user u wait"):
        use.pull_held()
    use.pull_ended()
    use.pull_held()
    assert dict(use.refused) == {"connections": 1, "heldPulls": 1}
