"""Rows about clients: ours and the Java client, each doing the same to a mailboat broker.

The broker is on the server's CPU and the client on the other one. Peer `rocketmq 4.9.7` stands for
the client 4.9.8, of which no broker was published.
"""

from collections.abc import Callable
from typing import Any, Literal

from bench_brokers import TOPIC, Mailboat, Variant
from bench_machine import generator_cpu, process_cpu_s
from bench_session import BODY_BYTES, Session
from bench_steady import warm_up
from bench_windows import Window, running_windows

Work = Literal["send", "batch", "drain"]

TASKS = 32
BATCH = 32

# A pass of a drain; the consumer begins again, as a new group, with each.
_DRAIN_MESSAGES = 200_000
_START_S = 120.0


def client(work: Work) -> Callable[[Session], tuple[float, dict[str, Any]]]:
    """Return a row that measures the messages a second of one client."""

    def measure(session: Session) -> tuple[float, dict[str, Any]]:
        with session.fresh_broker("client-broker", Variant(), Mailboat()) as broker:
            broker.start()
            broker.create_topic(TOPIC)
            if work == "drain":
                broker.fill(TOPIC, _DRAIN_MESSAGES)
            seconds = session.timing.seconds
            home = session.folder / "client"
            options = {"namesrv": broker.namesrv, "topic": TOPIC, "tasks": TASKS, "batch": BATCH}
            options |= {"body": BODY_BYTES, "seconds": seconds, "count": _DRAIN_MESSAGES}
            launch = session.system.client(home, work, options)
            with running_windows(launch, home, str(generator_cpu())) as windows:
                timeout_s = _START_S + seconds

                settled = warm_up(
                    lambda: _cpu_us(windows.next(timeout_s)),
                    at_least_windows=2,
                    at_most_s=session.timing.settle_at_most_s,
                )
                broker_s = process_cpu_s(broker.pid)
                window = windows.next(timeout_s)
                broker_s = process_cpu_s(broker.pid) - broker_s
            if complaint := settled.complaint():
                session.say(
                    f"{session.system.name}: client-{work}: {complaint} us of CPU a message"
                )
            details = {
                "cpu_us": round(_cpu_us(window), 2),
                "cores": round(window["cpu_s"] / window["seconds"], 3),
                "broker_cores": round(broker_s / window["seconds"], 3),
                "client": session.system.client_name,
                "warm_up": settled.as_fields(),
                "errors": {"failed sends": window["failures"]} if window["failures"] else {},
            }
            return round(rate_of(window), 1), details

    return measure


def _cpu_us(window: Window) -> float:
    return float(window["cpu_s"] / max(window["messages"], 1) * 1e6)


def rate_of(window: Window) -> float:
    """Return the messages a second of a window."""
    return float(window["messages"] / window["seconds"])
