from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.planning import ROWS_PER_TASK, QueueRange, admit, plan_tasks

QUEUES = [MessageQueue("t", "b", queue_id) for queue_id in range(8)]
BACKLOGS = st.lists(st.integers(0, 50_000), min_size=1, max_size=8)


def starts_and_ends(backlogs):
    """Return starts at 1000 * queue id and ends that leave the backlogs given."""
    starts = {queue: 1000 * queue.queue_id for queue in QUEUES[: len(backlogs)]}
    return starts, {queue: starts[queue] + n for queue, n in zip(starts, backlogs, strict=True)}


def test_shares_are_by_backlog():
    """A queue with three times the backlog gets about three times the offsets."""
    starts, ends = starts_and_ends([3000, 1000])
    admitted = admit(starts, ends, 400)
    assert admitted == {QUEUES[0]: 300, QUEUES[1]: 1100}


@given(BACKLOGS, st.integers(1, 100_000))
def test_a_batch_fills_its_limit_and_not_more(backlogs, limit):
    """The sum is the limit or the whole backlog, and no queue goes back or over its end."""
    starts, ends = starts_and_ends(backlogs)
    admitted = admit(starts, ends, limit)
    assert admitted.keys() == ends.keys()
    assert all(starts[queue] <= admitted[queue] <= ends[queue] for queue in ends)
    assert sum(admitted[queue] - starts[queue] for queue in ends) == min(sum(backlogs), limit)


@given(BACKLOGS, st.integers(8, 100_000))
def test_no_queue_with_a_backlog_starves(backlogs, limit):
    """A small queue beside large ones still gets one offset per batch."""
    starts, ends = starts_and_ends(backlogs)
    admitted = admit(starts, ends, limit)
    assert all(admitted[queue] > starts[queue] for queue in ends if ends[queue] > starts[queue])


def test_fewer_offsets_than_queues():
    """With a limit below the number of queues, the longest backlogs go first."""
    starts, ends = starts_and_ends([5, 9, 7])
    assert admit(starts, ends, 2) == {QUEUES[0]: 0, QUEUES[1]: 1001, QUEUES[2]: 2001}


def test_without_a_limit_all_is_admitted():
    """No limit means everything there is."""
    starts, ends = starts_and_ends([5, 9])
    assert admit(starts, ends, None) == ends


def test_a_start_beyond_its_end_takes_no_share():
    """A queue that shrank has a negative backlog, which must not be given to others."""
    starts, ends = {QUEUES[0]: 100, QUEUES[1]: 0}, {QUEUES[0]: 10, QUEUES[1]: 50}
    assert admit(starts, ends, 20) == {QUEUES[0]: 10, QUEUES[1]: 20}


@given(BACKLOGS, st.none() | st.integers(1, 64))
def test_tasks_hold_every_offset_once(backlogs, min_partitions):
    """Nothing is lost and nothing doubled by cutting and sharing."""
    starts, ends = starts_and_ends(backlogs)
    ranges = [QueueRange(queue, starts[queue], ends[queue]) for queue in starts]
    tasks = plan_tasks(ranges, min_partitions)
    pieces = sorted((part for task in tasks for part in task), key=lambda p: (p.queue, p.start))
    rows = Counter()
    at = dict(starts)
    for piece in pieces:
        assert piece.start == at[piece.queue]
        assert piece.size > 0
        at[piece.queue] = piece.end
        rows[piece.queue] += piece.size
    assert at == ends
    assert all(tasks)


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=8), st.integers(1, 64))
def test_min_partitions_is_honoured(backlogs, min_partitions):
    """At least as many tasks as asked for, as long as there are as many offsets."""
    starts, ends = starts_and_ends(backlogs)
    tasks = plan_tasks([QueueRange(q, starts[q], ends[q]) for q in starts], min_partitions)
    assert len(tasks) >= min(min_partitions, sum(backlogs))


def test_small_queues_share_a_task():
    """Eight queues with a row each are one task, not eight."""
    assert len(plan_tasks([QueueRange(queue, 0, 1) for queue in QUEUES])) == 1
    whole = [QueueRange(queue, 0, ROWS_PER_TASK) for queue in QUEUES]
    assert len(plan_tasks(whole)) == len(QUEUES)


def test_nothing_to_read_is_no_task():
    """Empty and backward ranges vanish."""
    assert plan_tasks([QueueRange(QUEUES[0], 5, 5), QueueRange(QUEUES[1], 9, 3)], 4) == []
