"""The rows of the benchmark: what each does to a broker, and the number it has to hold."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_brokers import QUEUES, BrokerProcess, System, Variant
from bench_generator import Answer, idle_connections
from bench_machine import BenchError, Memory, as_fields, raise_open_file_limit

BODY_BYTES = 1024

_PULL_TOPIC = "bench_pull"
_PULL_MESSAGES = QUEUES * 32_000
_RESTART_BYTES = 3_200_000_000
# What one message of 1 KB takes in a commit log: the body, its keys and the record's own fields.
_RECORD_BYTES = 1_260
_STARTS = 3
_IDLE_CONNECTIONS = 10_000
# After load, a broker still flushes, indexes and collects garbage for a moment.
_SETTLE_S = 3.0


@dataclass(frozen=True)
class Goal:
    """A bound on a number, and on its ratio to the peer's in the same run."""

    bound: float | None = None
    ratio: float | None = None
    at_least: bool = False
    of_row: str = ""
    """When set, the bound is a multiple of this row's number in the same run."""
    peer: str = ""
    """When set, only the ratio to this peer is judged."""

    def holds(self, value: float, bound: float) -> bool:
        """Return whether a number keeps a bound in this goal's direction."""
        return value >= bound if self.at_least else value <= bound


@dataclass
class Result:
    """One row of one system."""

    row: str
    system: str
    value: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """How long the load of a row runs."""

    warmup_s: float
    seconds: float


class Session:
    """One system through the whole benchmark; its loaded broker is started once and kept."""

    def __init__(self, system: System, folder: Path, timing: Timing) -> None:
        """Keep all files of this system's brokers below `folder`."""
        self.system = system
        self.folder = folder
        self.timing = timing
        self._broker: BrokerProcess | None = None
        self._pull_topic_filled = False

    @contextlib.contextmanager
    def broker(self) -> Iterator[BrokerProcess]:
        """Yield the kept broker, started and warm; it is paused again afterwards."""
        if self._broker is None:
            self._broker = BrokerProcess(self.system, self.folder / "kept", Variant())
            self._broker.start()
            self._broker.create_topic("bench")
            self._broker.warm_up()
        broker = self._broker
        broker.resume()
        try:
            yield broker
        finally:
            if broker.is_running:
                broker.pause()
            else:
                self.close()

    def fill_pull_topic(self, broker: BrokerProcess) -> None:
        """Store what the pull row reads, once."""
        if self._pull_topic_filled:
            return
        broker.create_topic(_PULL_TOPIC)
        options = {"connections": 16, "count": _PULL_MESSAGES, "topic": _PULL_TOPIC}
        broker.load("batch", warmup=0, seconds=300, **options)
        self._pull_topic_filled = True

    @contextlib.contextmanager
    def fresh_broker(self, name: str, variant: Variant) -> Iterator[BrokerProcess]:
        """Yield a broker on an empty store that is not started yet; it is removed afterwards."""
        broker = BrokerProcess(self.system, self.folder / name, variant)
        try:
            yield broker
        finally:
            broker.close()

    def close(self) -> None:
        """Remove the kept broker."""
        if self._broker is not None:
            self._broker.close()
        self._broker = None
        self._pull_topic_filled = False


Measure = Callable[[Session], tuple[float, dict[str, Any]]]


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    key: str
    title: str
    unit: str
    goal: Goal
    measure: Measure
    needs: str = ""
    """The kind of variant without which a system has no such row."""
    mailboat_only: bool = False
    by_default: bool = True


def _load_details(answer: Answer, memory: Memory) -> dict[str, Any]:
    details = {name: value for name, value in answer.items() if name.endswith("_us") and value}
    details |= {name: answer[name] for name in ("rate", "errors", "unanswered", "foreign_cores")}
    details["cores"] = round(answer["server_cpu_s"] / answer["seconds"], 3)
    details["generator_cores"] = round(answer["own_cpu_s"] / answer["seconds"], 2)
    if answer["messages"]:
        details["cpu_us"] = round(answer["server_cpu_s"] / answer["messages"] * 1e6, 2)
    if answer["undelivered"]:
        details["errors"] |= {"undelivered": answer["undelivered"]}
    if answer["unanswered"]:
        details["errors"] |= {"unanswered": answer["unanswered"]}
    if answer["complaints"]:
        details["complaints"] = answer["complaints"]
    return details | as_fields(memory)


def _load(mode: str, **options: object) -> Measure:
    def measure(session: Session) -> tuple[float, dict[str, Any]]:
        with session.broker() as broker:
            return _run_load(session, broker, mode, **options)

    return measure


def _run_load(
    session: Session, broker: BrokerProcess, mode: str, **options: object
) -> tuple[float, dict[str, Any]]:
    timing = session.timing
    answer = broker.load(mode, warmup=timing.warmup_s, seconds=timing.seconds, **options)
    if not answer["messages"] and not answer["errors"]:
        raise BenchError(f"no request was answered within {timing.seconds:.0f} s")
    return answer["rate"], _load_details(answer, broker.memory())


def _pull(session: Session) -> tuple[float, dict[str, Any]]:
    with session.broker() as broker:
        session.fill_pull_topic(broker)
        return _run_load(session, broker, "pull", connections=16, topic=_PULL_TOPIC)


def _pull_sql(session: Session) -> tuple[float, dict[str, Any]]:
    with session.broker() as broker:
        session.fill_pull_topic(broker)
        sql = "TAGS = 'TagA' AND KEYS IS NOT NULL"
        return _run_load(session, broker, "pull", connections=16, topic=_PULL_TOPIC, sql=sql)


def _sync_flush(session: Session) -> tuple[float, dict[str, Any]]:
    with session.fresh_broker("sync", Variant(sync_flush=True)) as broker:
        broker.start()
        broker.create_topic("bench")
        broker.warm_up()
        return _run_load(session, broker, "send", connections=64)


def _tail(session: Session) -> tuple[float, dict[str, Any]]:
    with session.broker() as broker:
        _rate, details = _run_load(session, broker, "timetable", rate=1000, depth=256)
        return details["cores"], details


def _idle(session: Session) -> tuple[float, dict[str, Any]]:
    with session.broker() as broker:
        time.sleep(_SETTLE_S)
        with idle_connections(broker.port, 0, broker.pid) as answer:
            time.sleep(max(session.timing.seconds, 5.0))
        cores = answer["server_cpu_s"] / answer["seconds"]
        return round(cores, 4), as_fields(broker.memory())


def _start(variant: Variant) -> Measure:
    def measure(session: Session) -> tuple[float, dict[str, Any]]:
        seconds = []
        for _ in range(_STARTS):
            with session.fresh_broker("start", variant) as broker:
                seconds.append(round(broker.start(), 3))
        return statistics.median(seconds), {"starts_s": seconds}

    return measure


def _memory(session: Session) -> tuple[float, dict[str, Any]]:
    smallest = "smallest" in session.system.variants()
    with session.fresh_broker("memory", Variant(smallest=smallest)) as broker:
        broker.start()
        time.sleep(_SETTLE_S)
        memory = broker.memory()
        return round(memory.rss_mb, 1), as_fields(memory)


def _restart(session: Session) -> tuple[float, dict[str, Any]]:
    with session.fresh_broker("restart", Variant()) as broker:
        broker.start()
        broker.create_topic("bench")
        count = _RESTART_BYTES // _RECORD_BYTES
        broker.load("batch", warmup=0, seconds=600, connections=16, count=count)
        broker.kill()
        seconds = broker.start()
        return round(seconds, 2), as_fields(broker.memory())


def _connections(session: Session) -> tuple[float, dict[str, Any]]:
    raise_open_file_limit(_IDLE_CONNECTIONS + 500)
    with session.fresh_broker("connections", Variant()) as broker:
        broker.start()
        time.sleep(_SETTLE_S)
        before = broker.memory()
        with idle_connections(broker.port, _IDLE_CONNECTIONS, broker.pid) as answer:
            after = broker.memory()
            time.sleep(session.timing.seconds)
        kilobytes = (after.anon_mb - before.anon_mb) * 1000 / _IDLE_CONNECTIONS
        cores = round(answer["server_cpu_s"] / answer["seconds"], 4)
        return round(kilobytes, 2), {"cores": cores} | as_fields(after)


def _at_least(bound: float | None, ratio: float, **options: str) -> Goal:
    return Goal(bound, ratio, at_least=True, **options)


ROWS = (
    Row(
        "send-64x1",
        "send, 64 connections, one request each",
        "msg/s",
        _at_least(40_000, 2.2),
        _load("send", connections=64),
    ),
    Row(
        "send-16x16",
        "send, pipelined (16 x 16)",
        "msg/s",
        _at_least(95_000, 3),
        _load("send", connections=16, depth=16),
    ),
    Row("send-1x1", "send, 1 connection, one request", "msg/s", Goal(at_least=True), _load("send")),
    Row(
        "batch",
        "batches of 32, 16 connections",
        "msg/s",
        _at_least(220_000, 2.2),
        _load("batch", connections=16, batch=32),
    ),
    Row("pull", "pull of 32, 16 connections", "msg/s", _at_least(700_000, 1.5), _pull),
    Row(
        "pull-sql",
        "the same with an SQL92 condition",
        "msg/s",
        Goal(at_least=True),
        _pull_sql,
    ),
    Row(
        "delayed",
        "delayed sends (1 s), 64 connections",
        "msg/s",
        Goal(at_least=True),
        _load("send", connections=64, delay=1),
    ),
    Row(
        "transactions",
        "half message and commit, 64 connections",
        "msg/s",
        Goal(at_least=True),
        _load("transaction", connections=64),
    ),
    Row(
        "sync-flush",
        "SYNC_FLUSH, 64 senders",
        "msg/s",
        _at_least(0.85, 3, of_row="send-64x1", peer="rocketmq 4.9.7"),
        _sync_flush,
    ),
    Row("tail", "1,000 msg/s with a tail consumer", "cores", Goal(0.08, 0.2), _tail),
    Row("idle", "idle after load", "cores", Goal(0.005, 0.1), _idle),
    Row("start", "start on an empty store", "s", Goal(0.5, 0.1), _start(Variant())),
    Row(
        "start-no-http",
        "the same without HTTP",
        "s",
        Goal(0.3),
        _start(Variant(http=False)),
        needs="no-http",
    ),
    Row("memory", "memory at rest (peer: its smallest)", "MB", Goal(60, 0.25), _memory),
    Row(
        "connections",
        "10,000 idle connections, each",
        "KB",
        Goal(20),
        _connections,
        mailboat_only=True,
    ),
    Row(
        "restart",
        "restart after kill -9, 3.2 GB of log",
        "s",
        Goal(5, 0.4),
        _restart,
        by_default=False,
    ),
)
