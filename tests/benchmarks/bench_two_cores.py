"""The row about more than one core: brokers and generators share two cores.

mailboat runs two brokers under one supervisor, Java one broker with all its threads. Each broker
has a generator of its own, Java's one broker has both.
"""

import os
import subprocess
import sys
import time
from functools import cache
from typing import Any

from bench_brokers import QUEUES, TOPIC, BrokerProcess, Mailboat, Variant, create_topic
from bench_generator import finish_generator, start_generator
from bench_machine import BenchError, RowSkippedError, machine_busy_s, tree_cpu_s
from bench_session import Session
from bench_steady import warm_up

BROKERS = 2

_CONNECTIONS = 32
_WINDOW_S = 5.0


def two_cores(session: Session) -> tuple[float, dict[str, Any]]:
    """Return the messages a second of 64 connections, one request each, on two cores."""
    if len(os.sched_getaffinity(0)) < BROKERS:
        raise RowSkippedError("it needs two CPUs")
    if session.system.name == Mailboat.name and not _has_brokers_option():
        raise RowSkippedError("`mailboat standalone` has no option --brokers yet")
    variant = Variant(both_cores=True, brokers=BROKERS)
    with session.fresh_broker("two-cores", variant) as broker:
        broker.start()
        brokers = list(zip(broker.broker_names, broker.ports(), strict=True))
        for _name, port in brokers:
            create_topic(port, TOPIC)
        # One broker is driven by as many generators as two are.
        brokers = [brokers[number % len(brokers)] for number in range(BROKERS)]
        settled = {}
        if session.system.needs_warmup:
            found = warm_up(
                lambda: float(_load(broker, brokers, 0.0, _WINDOW_S)["cpu_us"]),
                at_least_windows=4,
                at_most_s=session.timing.settle_at_most_s,
            )
            settled = {"warm_up": found.as_fields()}
            if complaint := found.complaint():
                session.say(f"{session.system.name}: two-cores: {complaint} us of CPU a message")
        timing = session.timing
        details = _load(broker, brokers, timing.warmup_s, timing.seconds)
        return details["rate"], details | settled


def _load(
    broker: BrokerProcess, brokers: list[tuple[str, int]], warmup_s: float, seconds: float
) -> dict[str, Any]:
    os.sync()
    options = {"topic": TOPIC, "queues": QUEUES, "connections": _CONNECTIONS}
    options |= {"warmup": warmup_s, "seconds": seconds}
    generators: list[subprocess.Popen[str]] = []
    try:
        for name, port in brokers:
            generator = start_generator("send", port, pinned=False, broker=name, **options)
            generators.append(generator)
        time.sleep(warmup_s)
        began_s, busy_s, server_s = time.monotonic(), machine_busy_s(), tree_cpu_s(broker.pid)
        time.sleep(seconds)
        elapsed_s = time.monotonic() - began_s
        server_s, busy_s = tree_cpu_s(broker.pid) - server_s, machine_busy_s() - busy_s
        answers = [finish_generator(generator, seconds + 60) for generator in generators]
    finally:
        for generator in generators:
            generator.kill()
            generator.wait()
    rate = sum(answer["rate"] for answer in answers)
    if not rate:
        raise BenchError("no request was answered")
    own_s = sum(answer["own_cpu_s"] for answer in answers)
    errors: dict[str, int] = {}
    for answer in answers:
        for code, count in answer["errors"].items():
            errors[code] = errors.get(code, 0) + count
    return {
        "rate": round(rate, 1),
        "rates": [answer["rate"] for answer in answers],
        "cores": round(server_s / elapsed_s, 3),
        "generator_cores": round(own_s / elapsed_s, 3),
        "cpu_us": round(server_s / elapsed_s / rate * 1e6, 2),
        "p50_us": max(answer["p50_us"] for answer in answers),
        "p99_us": max(answer["p99_us"] for answer in answers),
        "p999_us": max(answer["p999_us"] for answer in answers),
        "foreign_cores": round(max(busy_s - server_s - own_s, 0.0) / elapsed_s, 2),
        "errors": errors,
    }


@cache
def _has_brokers_option() -> bool:
    command = [sys.executable, "-m", "mailboat.cli", "standalone", "--help"]
    return "--brokers" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
