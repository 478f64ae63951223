import asyncio
import urllib.error
import urllib.request
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from mailboat.errors import RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.testing.virtual_time import VirtualTime
from mailboat_spark.job import progress
from mailboat_spark.job.endpoints import PortInUseError, serve
from mailboat_spark.job.metrics import JobMetrics, lag_by_topic
from mailboat_spark.job.progress import JobState, LagSampler, TaskWatch, has_advanced
from mailboat_spark.job.runner import failure_text
from mailboat_spark.planning import QueueBounds

QUEUE = MessageQueue("t", "b", 0)


def make_state(liveness_timeout_s=60.0):
    """Return the state of a job that has not begun."""
    return JobState(JobMetrics("job", "group", "1"), liveness_timeout_s=liveness_timeout_s)


def report(batch_id, rows, end):
    """Return what Spark says of a batch."""
    source = SimpleNamespace(endOffset=f'{{"_v":1,"t":{{"b:0":{end}}}}}')
    return SimpleNamespace(
        batchId=batch_id, numInputRows=rows, batchDuration=1500, sources=[source]
    )


def get(port, path):
    """Return status and text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_lag_counts_what_no_batch_has_read():
    """Lag is by topic, from the broker's end to the last finished batch, new queues whole."""
    new = MessageQueue("t", "b", 1)
    bounds = {QUEUE: QueueBounds(10, 100), new: QueueBounds(5, 8)}
    assert lag_by_topic(bounds, {QUEUE: 90}) == {"t": 13}
    # What expired is no longer behind.
    assert lag_by_topic(bounds, {QUEUE: 3, new: 8}) == {"t": 90}


def test_a_topic_that_is_gone_does_not_hide_the_lag_of_the_others():
    """Each topic is asked for by itself; only when none answers is there no answer."""

    class Brokers:
        async def bounds(self, topics, deadline_s):
            if topics == ("gone",):
                raise RouteNotFoundError("no route for topic gone")
            return {QUEUE: QueueBounds(0, 40)}

    class Thread:
        client = Brokers()

        def submit(self, question):
            answer = Future()
            try:
                answer.set_result(asyncio.run(question))
            except RouteNotFoundError as exc:
                answer.set_exception(exc)
            return answer

    state = make_state()
    state.begin({QUEUE: 5})
    LagSampler(Thread(), ("gone", "t"), state, 10.0).poll()
    text = state.metrics.text().decode()
    assert 'mailboat_job_lag_messages{topic="t"} 35.0' in text
    assert "mailboat_job_lag_failures_total 1.0" in text
    LagSampler(Thread(), ("gone",), state, 10.0).poll()
    assert "mailboat_job_lag_failures_total 2.0" in state.metrics.text().decode()


def test_endpoints_follow_the_query():
    """Ready from the first sign of the query until the end is asked for; numbers add up."""
    state = make_state()
    with serve(0, state) as port:
        assert get(port, "/readyz") == (503, "the job is starting\n")
        state.begin({QUEUE: 5})
        state.batch_ended(report(7, 20, 25))
        state.batch_ended(report(8, 10, 35))
        answer = Future()
        answer.set_result({QUEUE: QueueBounds(0, 40)})
        state.lag_answered(answer)
        assert get(port, "/readyz") == (200, "ok\n")
        assert get(port, "/livez") == (200, "ok\n")
        text = get(port, "/metrics")[1]
        assert "mailboat_job_rows_total 30.0" in text
        assert "mailboat_job_last_batch_id 8.0" in text
        assert 'mailboat_job_lag_messages{topic="t"} 5.0' in text
        assert "mailboat_job_batch_duration_seconds_sum 3.0" in text
        state.stopping()
        state.idle()
        assert get(port, "/readyz") == (503, "the job is stopping\n")
        assert get(port, "/other")[0] == 404
        with pytest.raises(PortInUseError, match="give another --metrics-port"):
            serve(port, state).__enter__()


def test_a_silent_query_is_dead():
    """/livez fails when neither a batch nor an idle trigger was told of for too long."""
    state = make_state(liveness_timeout_s=-1)
    assert "no batch, no task and no idle trigger" in (state.dead_reason() or "")


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {}, False),
        ({}, {3: 0}, False),
        ({}, {3: 1}, True),
        ({3: 1}, {3: 1}, False),
        ({3: 1}, {3: 2}, True),
        ({3: 5}, {4: 0}, False),
        # Its second attempt begins anew.
        ({3: 5}, {3: 0}, False),
    ],
)
def test_only_a_finished_task_is_a_step(before, now, expected):
    """A stage that begins, stands still or is begun again gets nowhere."""
    assert has_advanced(before, now) is expected


def test_a_long_batch_lives_while_its_tasks_end(monkeypatch):
    """/livez stays good beyond the timeout as long as the batch gets on, and not longer."""
    clock = VirtualTime()
    monkeypatch.setattr(progress, "time", clock)
    stages = {7: SimpleNamespace(stageId=7, numCompletedTasks=0)}
    # Stage 8 ends between the two questions.
    tracker = SimpleNamespace(getActiveStageIds=lambda: [7, 8], getStageInfo=stages.get)
    state = make_state(liveness_timeout_s=60)
    watch = TaskWatch(tracker, state)
    for ended in (1, 2, 3):
        clock.advance(50)
        stages[7].numCompletedTasks = ended
        watch.poll()
        assert state.dead_reason() is None
    assert state.ready_reason() == "the job is starting"
    clock.advance(61)
    watch.poll()
    assert state.dead_reason() == "no batch, no task and no idle trigger for 61 s"


def test_the_sentence_is_found_in_a_failure():
    """Of Spark's many lines the user sees the source's one."""
    text = (
        "[STREAM_FAILED] Query terminated\n  File x\n"
        "mailboat_spark.broker_client.DataLossError: t holds 2 to 3; do this\n\n"
        "JVM stacktrace:\norg.apache..."
    )
    assert failure_text(text) == "t holds 2 to 3; do this"
    assert failure_text("\nfirst\nsecond") == "the query failed: first"
