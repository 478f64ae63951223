"""The checker is checked: each doctored story is told from a true one, and by its name."""

from collections.abc import Callable

import pytest

from mailboat.testing.history import (
    Crash,
    Found,
    History,
    HistoryViolation,
    Outcome,
    QueueView,
)

KEY = ("orders", 0)
_ASYNC, _SYNC = Crash.POWER_CUT_ASYNC_FLUSH, Crash.POWER_CUT_SYNC_FLUSH


def _history() -> History:
    """Five messages: three acknowledged, one refused, one unknown; the first two are flushed."""
    history = History()
    sent = [history.send(*KEY, b"body%d" % number) for number in range(5)]
    for number in range(3):
        history.acknowledge(sent[number], number, 100 * number)
    history.refuse(sent[3])
    history.send("orders", 7, b"elsewhere")
    history.durable_below = 200
    return history


def _view(*numbers: int, low: int = 0, high: int | None = None) -> dict[tuple[str, int], QueueView]:
    """The queue when it holds the messages with these numbers one after the other."""
    found = [
        Found(low + place, 100 * (low + place), b"body%d" % number)
        for place, number in enumerate(numbers)
    ]
    return {KEY: QueueView(low, low + len(numbers) if high is None else high, found)}


# The unknown message in a queue of its own, behind everything else in the log.
_ELSEWHERE = {("orders", 7): QueueView(0, 1, [Found(0, 300, b"elsewhere")])}


@pytest.mark.parametrize("crash", list(Crash))
@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 1, 2, 4)])
def test_a_true_story_is_believed(crash: Crash, numbers: tuple[int, ...]) -> None:
    """Everything acknowledged is there; what is unknown may be there or not."""
    _history().check(_view(*numbers), crash)


def test_a_power_cut_may_take_the_newest_under_async_flush() -> None:
    """Only what no finished flush covered, and only from the end."""
    _history().check(_view(0, 1), _ASYNC)


@pytest.mark.parametrize(
    ("anomaly", "view", "crash"),
    [
        ("acknowledged and lost", _view(0, 1), Crash.NONE),
        ("acknowledged and lost", _view(0, 1), _SYNC),
        ("acknowledged and lost", {}, Crash.NONE),
        ("flushed and lost", _view(0), _ASYNC),
        ("lost from the middle", _view(0, 1) | _ELSEWHERE, _ASYNC),
        ("refused but stored", _view(0, 1, 2, 3), Crash.NONE),
        ("changed or never sent", _view(0, 1, 9), Crash.NONE),
        ("stored twice", _view(0, 1, 2, 4, 4), Crash.NONE),
        ("moved", _view(1, 0, 2), Crash.NONE),
        ("gap", _view(0, 1, 2, high=4), Crash.NONE),
        ("gap", {KEY: QueueView(0, 2, [Found(0, 0, b"body0"), Found(2, 200, b"body2")])}, _ASYNC),
        ("in another queue", _view() | {("orders", 1): _view(0)[KEY]}, Crash.NONE),
    ],
)
def test_a_doctored_story_is_named(
    anomaly: str, view: dict[tuple[str, int], QueueView], crash: Crash
) -> None:
    """Each anomaly is noticed and called by its name."""
    with pytest.raises(HistoryViolation) as caught:
        _history().check(view, crash)
    assert caught.value.anomaly == anomaly


def test_messages_of_a_queue_keep_the_order_of_sending() -> None:
    """A later message never comes before an earlier one."""
    history = History()
    for number in range(2):
        history.send(*KEY, b"body%d" % number)
    with pytest.raises(HistoryViolation, match="order"):
        history.check(_view(1, 0), Crash.NONE)


def test_an_offset_belongs_to_one_message() -> None:
    """A second SEND_OK with the same offset is noticed when it is answered."""
    history = _history()
    with pytest.raises(HistoryViolation, match="offset given twice"):
        history.acknowledge(history.send(*KEY, b"another"), 2, 900)


def test_an_offset_may_be_given_again_after_its_message_was_lost() -> None:
    """ASYNC_FLUSH after a power cut, and only then."""
    history = _history()
    history.adopt(_view(0, 1), _ASYNC)
    assert history.sent[2].outcome is Outcome.LOST
    history.acknowledge(history.send(*KEY, b"another"), 2, 200)


def test_what_was_lost_does_not_come_back() -> None:
    """A tail that was cut stays cut."""
    history = _history()
    history.adopt(_view(0, 1), _ASYNC)
    with pytest.raises(HistoryViolation, match="lost and back again"):
        history.check(_view(0, 1, 2), Crash.NONE)


def _see_unknown(history: History) -> None:
    history.see(KEY, [Found(3, 300, b"body4")])


def _adopt_unknown(history: History) -> None:
    history.adopt(_view(0, 1, 2, 4), Crash.NONE)


@pytest.mark.parametrize("reveal", [_see_unknown, _adopt_unknown])
def test_what_a_consumer_saw_stays(reveal: Callable[[History], None]) -> None:
    """A message whose outcome the sender does not know must not vanish once it was visible."""
    history = _history()
    reveal(history)
    with pytest.raises(HistoryViolation, match="lost"):
        history.check(_view(0, 1, 2), _SYNC)


def test_expired_messages_may_go_but_their_offsets_stay_taken() -> None:
    """Retention removes the beginning of a queue; the queue does not start again."""
    history = _history()
    history.expired_below = 300
    history.check(_view(1, 2, low=1), Crash.NONE)
    history.check(_view(low=3), Crash.NONE)
    for view in ({}, _view()):
        with pytest.raises(HistoryViolation, match="offsets start again"):
            history.check(view, Crash.NONE)


def test_a_consumer_must_not_be_given_what_was_refused() -> None:
    """Also between crashes."""
    with pytest.raises(HistoryViolation, match="refused but stored"):
        _history().see(KEY, [Found(3, 300, b"body3")])


def test_connections_have_an_order_each() -> None:
    """What was sent over another connection, without an answer, may be stored later."""
    history = History()
    history.send(*KEY, b"body0", session=1)
    history.send(*KEY, b"body1", session=2)
    history.send(*KEY, b"body2", session=2)
    history.check(_view(1, 2, 0), Crash.NONE)
    with pytest.raises(HistoryViolation, match="order"):
        history.check(_view(2, 1, 0), Crash.NONE)


def test_nothing_lies_before_what_was_acknowledged_before_it_was_sent() -> None:
    """Whatever connection or queue: a former leader acknowledges no more."""
    history = History()
    first = history.send(*KEY, b"body0", session=1)
    history.acknowledge(first, 0, 100)
    history.send("orders", 7, b"elsewhere", session=2)
    queues = {
        KEY: QueueView(0, 1, [Found(0, 100, b"body0")]),
        ("orders", 7): QueueView(0, 1, [Found(0, 0, b"elsewhere")]),
    }
    with pytest.raises(HistoryViolation, match="order"):
        history.check(queues, Crash.NONE)
    queues["orders", 7] = QueueView(0, 1, [Found(0, 200, b"elsewhere")])
    history.check(queues, Crash.NONE)


def test_only_the_newest_of_an_async_group_may_be_lost() -> None:
    """Acknowledged or seen; their places are given again."""
    history = _history()
    history.may_lose_from = 2
    history.acknowledge(history.send(*KEY, b"another"), 2, 200)
    with pytest.raises(HistoryViolation, match="acknowledged and lost"):
        history.check(_view(0), Crash.NONE)
    queues = _view(0, 1)
    queues[KEY] = QueueView(0, 3, [*queues[KEY].messages, Found(2, 200, b"another")])
    history.adopt(queues, Crash.NONE)
    assert history.sent[2].outcome is Outcome.LOST
