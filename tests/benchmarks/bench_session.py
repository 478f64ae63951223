"""One system through a benchmark: its loaded broker, how its loads are warmed up and run."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_brokers import QUEUES, BrokerProcess, System, Variant
from bench_generator import Answer
from bench_machine import BenchError, Memory, as_fields
from bench_steady import warm_up

BODY_BYTES = 1024
# What one message of 1 KB takes in a commit log: the body, its keys and the record's own fields.
RECORD_BYTES = 1_260
# A kept broker that has stored more after a row makes room for an empty one.
KEPT_BYTES = 5_000_000_000

_PULL_TOPIC = "bench_pull"
_PULL_MESSAGES = QUEUES * 32_000
# Before any two windows of a fresh process may agree.
_FRESH_WINDOWS = 4


@dataclass(frozen=True)
class Timing:
    """How long loads run, in seconds, and how large the rows with a size of their own are."""

    warmup_s: float
    seconds: float
    settle_at_most_s: float
    """The bound on each warm-up of a just-in-time compiler."""
    stall_s: float
    restart_bytes: int


class Session:
    """One system through the whole benchmark; its loaded broker is started once and kept."""

    def __init__(
        self, system: System, folder: Path, timing: Timing, say: Callable[[str], None]
    ) -> None:
        """Keep all files of this system's brokers below `folder`; `say` prints a line."""
        self.system = system
        self.folder = folder
        self.timing = timing
        self.say = say
        self._broker: BrokerProcess | None = None
        self._pull_topic_filled = False

    @contextlib.contextmanager
    def broker(self) -> Iterator[BrokerProcess]:
        """Yield the kept broker; afterwards it is paused, or removed if it has stored too much."""
        if self._broker is None:
            self._broker = BrokerProcess(self.system, self.folder / "kept", Variant())
            self._broker.start()
            self._broker.create_topic("bench")
        broker = self._broker
        broker.resume()
        try:
            yield broker
        finally:
            if broker.is_running and _stored_bytes(self.folder) < KEPT_BYTES:
                broker.pause()
            else:
                self.close()

    @contextlib.contextmanager
    def pull_topic(self) -> Iterator[tuple[BrokerProcess, str]]:
        """Yield the kept broker with a topic of 500,000 messages, which is filled once."""
        with self.broker() as broker:
            if not self._pull_topic_filled:
                broker.create_topic(_PULL_TOPIC)
                broker.fill(_PULL_TOPIC, _PULL_MESSAGES)
                self._pull_topic_filled = True
            yield broker, _PULL_TOPIC

    @contextlib.contextmanager
    def fresh_broker(
        self, name: str, variant: Variant, system: System | None = None
    ) -> Iterator[BrokerProcess]:
        """Yield a broker on an empty store that is not started yet; it is removed afterwards."""
        broker = BrokerProcess(system or self.system, self.folder / name, variant)
        try:
            yield broker
        finally:
            broker.close()

    def run_load(
        self, broker: BrokerProcess, mode: str, **options: object
    ) -> tuple[float, dict[str, Any]]:
        """Warm up, measure one load, and return messages a second with all the numbers."""
        settled = self._settle(broker, mode, **options)
        timing = self.timing
        answer = broker.load(mode, warmup=timing.warmup_s, seconds=timing.seconds, **options)
        if not answer["messages"] and not answer["errors"]:
            raise BenchError(f"no request was answered within {timing.seconds:.0f} s")
        return answer["rate"], load_details(answer, broker.memory()) | settled

    def _settle(self, broker: BrokerProcess, mode: str, **options: object) -> dict[str, Any]:
        """Let a just-in-time compiler see this very load until its cost settles."""
        if not self.system.needs_warmup:
            return {}

        def cpu_us_per_message() -> float:
            seconds = min(self.timing.seconds, 5.0)
            answer = broker.load(mode, warmup=0, seconds=seconds, **options)
            return float(answer["server_cpu_s"] / max(answer["messages"], 1) * 1e6)

        settled = warm_up(
            cpu_us_per_message,
            at_least_windows=2 if broker.was_loaded else _FRESH_WINDOWS,
            at_most_s=self.timing.settle_at_most_s,
        )
        broker.was_loaded = True
        if complaint := settled.complaint():
            self.say(f"{self.system.name}: {mode}: {complaint} us of CPU a message")
        return {"warm_up": settled.as_fields()}

    def close(self) -> None:
        """Remove the kept broker."""
        if self._broker is not None:
            self._broker.close()
        self._broker = None
        self._pull_topic_filled = False


def _stored_bytes(folder: Path) -> int:
    """Return what lies on the disk below a folder; files may be sparse."""
    total = 0
    for path in folder.rglob("*"):
        # Brokers delete files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def load_details(answer: Answer, memory: Memory) -> dict[str, Any]:
    """Return what a row keeps of the generator's report."""
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
