"""Runs the job: from the options to the end of the query, in order also when it is asked to end.

Stopping a Spark query interrupts its batch. So the end goes like this: the source is told through a
file that no further batch is wanted, the running batch ends, the query is stopped between batches,
and the group's offsets are stored once more from the checkpoint, because Spark tells the source of
a batch's end only when it plans the next one.
"""

import logging
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mailboat import __version__
from mailboat.errors import MailboatError
from mailboat_spark.client_thread import close_shared_clients, shared_client
from mailboat_spark.job import checkpoint, pairing, table
from mailboat_spark.job.endpoints import serve
from mailboat_spark.job.executors import PodClient
from mailboat_spark.job.fence import hold
from mailboat_spark.job.metrics import JobMetrics
from mailboat_spark.job.options import JobOptions
from mailboat_spark.job.progress import JobListener, JobState, LagSampler, TaskWatch
from mailboat_spark.job.settings import job_settings
from mailboat_spark.session import end_java, open_session

logger = logging.getLogger(__name__)

_POLL_S: Final = 1
_LAG_INTERVAL_S: Final = 10.0
_EVENTS_TIMEOUT_S: Final = 10.0
# The sentence of our own errors, somewhere in the many lines of a failed query.
_OWN_ERROR: Final = re.compile(r"^mailboat(?:_spark)?\.[\w.]*Error: (.+)$", re.MULTILINE)


class JobFailedError(MailboatError):
    """The query failed; the text is the source's sentence where it has one."""


def run_job(options: JobOptions) -> int:
    """Start Spark, run the query and end everything; return the exit code.

    Raises:
        MailboatError: the job cannot run, or failed.
    """
    metrics = JobMetrics(options.name, options.group_name, __version__)
    state = JobState(metrics, liveness_timeout_s=options.liveness_timeout_s)
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(_signals(stop))
        stack.enter_context(serve(options.metrics_port, state))
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="mailboat-job-", dir=options.work_dir, ignore_cleanup_errors=True
            )
        )
        stack.callback(close_shared_clients)
        spark = _start_spark(options, Path(folder))
        stack.callback(_end_spark, spark)
        if not stop.is_set():
            run_query(spark, options, state, stop, Path(folder))
    return 0


def run_query(
    spark: SparkSession, options: JobOptions, state: JobState, stop: threading.Event, work_dir: Path
) -> None:
    """Run the query until it ends by itself or `stop` is set.

    Raises:
        MailboatError: another job holds the checkpoint, the output is not the job's, or the query
            failed.
    """
    with ExitStack() as stack:
        for folder in (options.checkpoint_dir, options.output):
            stack.enter_context(hold(spark, folder, options.lock_timeout_s, give_up=stop.is_set))
        if options.on_kubernetes:
            pods = PodClient(options.master, options.kubernetes.namespace)
            pods.delete_executors(
                options.name,
                options.kubernetes.instance,
                but_of=spark.sparkContext.applicationId,
            )
        pairing.pair(options.checkpoint_dir, options.output, options.partition_by)
        table.remove_strays(options.output, options.partition_by)
        state.begin(checkpoint.finished_offsets(options.checkpoint_dir))
        stop_file = work_dir / "stop"
        try:
            listener = JobListener(state)
            spark.streams.addListener(listener)
            query = start_query(spark, options, stop_file)
            tracker = spark.sparkContext.statusTracker()
            _follow(query, tracker, options, state, stop, stop_file)
            spark.streams.removeListener(listener)
        except (PySparkException, Py4JError) as exc:
            raise JobFailedError(failure_text(str(exc))) from exc


def start_query(spark: SparkSession, options: JobOptions, stop_file: Path) -> StreamingQuery:
    """Start the query that writes the table."""
    reader = spark.readStream.format("mailboat").schema(table.COLUMNS)
    reader = reader.options(**options.source_options(), stopFile=str(stop_file))
    frame = table.with_partition_columns(reader.load(), options.partition_by)
    writer = (
        frame.writeStream.format("parquet")
        .queryName(options.name)
        .option("path", str(options.output))
        .option("checkpointLocation", str(options.checkpoint_dir))
    )
    if options.partition_by:
        writer = writer.partitionBy(*options.partition_by)
    if options.mode == "available-now":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(options.trigger_s * 1000)} milliseconds")
    return writer.start()


def _follow(
    query: StreamingQuery,
    tracker: StatusTracker,
    options: JobOptions,
    state: JobState,
    stop: threading.Event,
    stop_file: Path,
) -> None:
    client = shared_client(options.namesrv, options.access)
    sampler = LagSampler(client, options.topic_names, state, _LAG_INTERVAL_S)
    tasks = TaskWatch(tracker, state)
    try:
        while not stop.is_set() and not query.awaitTermination(_POLL_S):
            sampler.poll()
            tasks.poll()
        if query.isActive:
            state.stopping()
            _stop_between_batches(query, stop_file, options.stop_timeout_s)
        # Raises what the query failed with.
        query.awaitTermination(_POLL_S)
    finally:
        _store_group_offsets(options)
    state.terminated.wait(_EVENTS_TIMEOUT_S)
    logger.info("ended after %d rows in %d batches", state.rows, state.batches)


def _stop_between_batches(query: StreamingQuery, stop_file: Path, timeout_s: float) -> None:
    logger.info("asked to end; waiting up to %g s for the running batch", timeout_s)
    stop_file.touch()
    deadline_s = time.monotonic() + timeout_s
    while query.isActive and query.status["isTriggerActive"]:
        if time.monotonic() > deadline_s:
            query.stop()
            raise JobFailedError(
                f"the running batch did not end within {timeout_s:g} s and was interrupted; "
                "the next start repeats it"
            )
        query.awaitTermination(_POLL_S)
    query.stop()


def _store_group_offsets(options: JobOptions) -> None:
    """Store what is finished for the group; the brokers may be away, and then it stays undone."""
    if not options.commit_group_offsets:
        return
    offsets = checkpoint.finished_offsets(options.checkpoint_dir)
    if offsets:
        client = shared_client(options.namesrv, options.access)
        client.run(client.client.commit(options.group_name, offsets))


def failure_text(text: str) -> str:
    """Return the one sentence that matters of what Spark says of a failed query."""
    own = _OWN_ERROR.findall(text)
    if own:
        return str(own[-1])
    first = next((line for line in text.splitlines() if line.strip()), "no reason was given")
    return f"the query failed: {first.strip()}"


def _start_spark(options: JobOptions, work_dir: Path) -> SparkSession:
    local_ip = options.kubernetes.pod_ip if options.on_kubernetes else "127.0.0.1"
    try:
        return open_session(
            work_dir,
            app_name=options.name,
            master=options.master,
            local_ip=local_ip,
            settings=job_settings(options, work_dir),
        )
    except (PySparkException, Py4JError) as exc:
        raise JobFailedError(f"Spark does not start: {failure_text(str(exc))}") from exc


def _end_spark(spark: SparkSession) -> None:
    try:
        spark.stop()
        end_java()
    except (Py4JError, OSError) as exc:
        logger.warning("Java had ended before: %s", exc)


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT; a second one ends the process at once."""

    def ask_to_end(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, ask_to_end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
