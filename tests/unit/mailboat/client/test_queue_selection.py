from collections import Counter

from mailboat.client.latency_fault import LatencyFaults
from mailboat.client.queue_selection import QueueSelection
from mailboat.model.message_queue import MessageQueue

QUEUES = [MessageQueue("T", name, number) for name in ("a", "b") for number in range(3)]


def test_round_robin_serves_every_queue_alike():
    """Over whole rounds every queue gets the same number of messages, in turn."""
    selection = QueueSelection()
    chosen = [selection.select("T", QUEUES) for _ in range(18)]
    assert Counter(chosen) == dict.fromkeys(QUEUES, 3)
    start = QUEUES.index(chosen[0])
    assert chosen[:6] == QUEUES[start:] + QUEUES[:start]


def test_start_is_random():
    """Many producers do not all begin with the same queue."""
    starts = {QueueSelection().select("T", QUEUES) for _ in range(200)}
    assert len(starts) > 1


def test_topics_have_their_own_positions():
    """Alternating between two topics still serves all queues of each."""
    selection = QueueSelection()
    chosen = []
    for _ in range(6):
        chosen.append(selection.select("T", QUEUES))
        selection.select("U", QUEUES)
    assert sorted(chosen) == QUEUES


def test_failed_broker_is_avoided():
    """A retry goes to another broker than the one that just failed."""
    selection = QueueSelection()
    assert {selection.select("T", QUEUES, "a").broker_name for _ in range(12)} == {"b"}


def test_only_broker_is_tried_again():
    """With one broker there is nothing to choose: the retry goes there again."""
    assert QueueSelection().select("T", QUEUES[:3], "a").broker_name == "a"


def test_slow_broker_is_passed_over():
    """With latency-fault avoidance a broker that was slow gets nothing for a while."""
    faults = LatencyFaults(lambda: 0.0)
    faults.record("a", 1500)
    selection = QueueSelection(faults)
    assert {selection.select("T", QUEUES).broker_name for _ in range(12)} == {"b"}


def test_least_bad_broker_serves_when_all_are_slow():
    """When every broker is away, the one that is back first gets the messages."""
    faults = LatencyFaults(lambda: 0.0)
    faults.record("a", 3000)
    faults.record("b", 600)
    selection = QueueSelection(faults)
    chosen = [selection.select("T", QUEUES) for _ in range(12)]
    assert Counter(chosen) == dict.fromkeys(QUEUES[3:], 4)
