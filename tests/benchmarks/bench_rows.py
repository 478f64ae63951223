"""The rows of the benchmark: what each does to a broker, and what it has to reach."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench_brokers import Variant
from bench_client import client
from bench_life import connections, idle, memory, restart, start
from bench_machine import BenchError
from bench_replication import catch_up, promotion, replicated
from bench_session import Session
from bench_spark import spark
from bench_stall import stall
from bench_targets import Limit, Target
from bench_two_cores import two_cores

Measured = tuple[float, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    key: str
    title: str
    unit: str
    target: Target
    measure: Callable[[Session], Measured]
    needs: str = ""
    """The kind of variant without which a system has no such row."""
    mailboat_only: bool = False


def _load(mode: str, **options: object) -> Callable[[Session], Measured]:
    def measure(session: Session) -> Measured:
        with session.broker() as broker:
            return session.run_load(broker, mode, **options)

    return measure


def _pull(**options: object) -> Callable[[Session], Measured]:
    def measure(session: Session) -> Measured:
        with session.pull_topic() as (broker, topic):
            return session.run_load(broker, "pull", connections=16, topic=topic, **options)

    return measure


def _sync_flush(session: Session) -> Measured:
    with session.fresh_broker("sync", Variant(sync_flush=True)) as broker:
        broker.start()
        broker.create_topic("bench")
        return session.run_load(broker, "send", connections=64)


def _tail(session: Session) -> Measured:
    with session.broker() as broker:
        _rate, details = session.run_load(broker, "timetable", rate=1000, depth=256)
        return details["cores"], details


ROWS = (
    Row(
        "send-64x1",
        "send, 64 connections, one request each",
        "msg/s",
        Target("cpu", 2.5),
        _load("send", connections=64),
    ),
    Row("send-1x1", "send, 1 connection, one request", "msg/s", Target("cpu", 1.5), _load("send")),
    Row(
        "send-16x16",
        "send, pipelined (16 x 16)",
        "msg/s",
        Target("cpu", 5),
        _load("send", connections=16, depth=16),
    ),
    Row(
        "batch",
        "batches of 32, 16 connections",
        "msg/s",
        Target("cpu", 3),
        _load("batch", connections=16, batch=32),
    ),
    Row("pull", "pull of 32, 16 connections", "msg/s", Target("cpu", 1.8), _pull()),
    Row(
        "sync-flush",
        "SYNC_FLUSH, 64 senders",
        "msg/s",
        Target("cpu", 2),
        _sync_flush,
    ),
    Row(
        "delayed",
        "delayed sends (1 s), 64 connections",
        "msg/s",
        Target("cpu", 1.5),
        _load("send", connections=64, delay=1),
    ),
    Row(
        "transactions",
        "half message and commit, 64 connections",
        "msg/s",
        Target("cpu", 1.5),
        _load("transaction", connections=64),
    ),
    Row(
        "pull-sql",
        "pull of 32 with an SQL92 condition",
        "msg/s",
        Target("cpu", 1.5),
        _pull(sql="TAGS = 'TagA' AND KEYS IS NOT NULL"),
    ),
    Row(
        "tail",
        "1,000 msg/s with a tail consumer",
        "cores",
        Target(
            "less",
            0.7,
            0.28,
            limits=(
                Limit("end_to_end_p50_us", "p50 us", 500),
                Limit("end_to_end_p99_us", "p99", of_peer="rocketmq 4.9.7"),
            ),
        ),
        _tail,
    ),
    Row("idle", "idle after load", "cores", Target("less", 0.1, 0.005), idle),
    Row("start", "start on an empty store", "s", Target("less", 0.1, 0.5), start(Variant())),
    Row(
        "start-no-http",
        "the same without HTTP",
        "s",
        Target("less", bound=0.3),
        start(Variant(http=False)),
        needs="no-http",
    ),
    Row("memory", "memory at rest (peer: its smallest)", "MB", Target("less", bound=60), memory),
    Row(
        "connections",
        "10,000 idle connections, each",
        "KB",
        Target("less", bound=5),
        connections,
        mailboat_only=True,
    ),
    Row(
        "restart",
        "restart after kill -9, no checkpoint of the log",
        "s",
        Target("less", 0.4),
        restart,
    ),
    Row(
        "stall",
        "5,000 msg/s while files turn over, longest",
        "ms",
        Target(
            "less",
            limits=(Limit("p999_us", "p99.9 us", 10_000), Limit("max_us", "max us", 50_000)),
        ),
        stall,
        mailboat_only=True,
    ),
    Row("client-send", "client, 32 tasks", "msg/s", Target("more", 0.7), client("send")),
    Row(
        "client-batch",
        "client, 32 tasks of batches of 32",
        "msg/s",
        Target("more", 0.7),
        client("batch"),
    ),
    Row(
        "client-drain",
        "client, PushConsumer from the first offset",
        "msg/s",
        Target("more", 0.7),
        client("drain"),
    ),
    Row(
        "spark-noop",
        "Spark source to noop, 2 cores",
        "rows/s",
        Target("more", bound=80_000),
        spark("noop"),
        mailboat_only=True,
    ),
    Row(
        "spark-parquet",
        "Spark source to Parquet, 2 cores",
        "rows/s",
        Target("more", bound=35_000),
        spark("parquet"),
        mailboat_only=True,
    ),
    Row(
        "two-cores",
        "send 64 x 1 on two cores, 2 brokers (peer: 1)",
        "msg/s",
        Target("more"),
        two_cores,
    ),
    Row(
        "replication",
        "16 x 16 with a slave on the generator's CPU, of without",
        "%",
        Target("more", bound=85),
        replicated(shares_cpu=False),
    ),
    Row(
        "replication-shared",
        "the same, the slave on the master's CPU",
        "%",
        Target("more", bound=45),
        replicated(shares_cpu=True),
    ),
    Row(
        "replication-catch-up",
        "an empty slave takes the log",
        "MB/s",
        Target("more", bound=400),
        catch_up,
        mailboat_only=True,
    ),
    Row(
        "replication-promotion",
        "from the promotion to the first accepted send",
        "ms",
        Target("less", bound=300),
        promotion,
        mailboat_only=True,
    ),
)

# These grow with their size: whoever names no row gets them small.
SIZED = frozenset({"restart", "stall"})


def chosen_rows(text: str) -> list[Row]:
    """Return the rows that a list of names means; `client` means all whose names begin so.

    Raises:
        BenchError: there is no such row.
    """
    if text in ("all", "default"):
        return list(ROWS)
    keys = [row.key for row in ROWS]
    wanted: set[str] = set()
    for name in text.split(","):
        found = {name} if name in keys else {key for key in keys if key.startswith(f"{name}-")}
        if not found:
            raise BenchError(f"no row {name}; there are {', '.join(keys)}")
        wanted |= found
    return [row for row in ROWS if row.key in wanted]
