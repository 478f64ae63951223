"""Plants one defect after another into a copy of the tree; the tests near it have to fail.

    python tests/soak/plants.py [NAME...]

A suite that is green proves something only if it can be red. Each defect here is small, as a slip
of a hand makes it, and takes back one promise of one part. It ends with 1 if the tests pass with
one of them, or if a defect finds its place no more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_SOURCES: Final = ("broker/src", "operator/src", "spark/src")
_MAILBOAT: Final = "broker/src/mailboat"
_TIMEOUT_S: Final = 1200


@dataclass(frozen=True)
class Plant:
    """One defect: what a file says, what it says then, and the tests near it."""

    name: str
    path: str
    sound: str
    broken: str
    tests: Sequence[str]
    """Paths for pytest; none for a defect of the core, which cargo tests."""


PLANTS: Final = (
    Plant(
        "store: files go before what they hold is durable elsewhere",
        f"{_MAILBOAT}/store/cleaner.py",
        "if self._commit_log.segments[0].end > safe_offset:",
        "if self._commit_log.segments[0].start > safe_offset:",
        ["tests/unit/mailboat/store/test_cleaner.py", "tests/crash/test_store_simulator.py"],
    ),
    Plant(
        "recovery: a torn tail stays behind the end of the log",
        f"{_MAILBOAT}/store/recovery.py",
        "            last.cut(position)\n",
        "            pass\n",
        ["tests/crash/test_kernel_runs.py"],
    ),
    Plant(
        "delay: a message comes half a second early",
        f"{_MAILBOAT}/broker/schedule.py",
        "if deliver_ms > now_ms:\n                    return",
        "if deliver_ms > now_ms + 500:\n                    return",
        ["tests/unit/mailboat/broker/test_schedule.py"],
    ),
    Plant(
        "offsets: a commit from before a reset undoes it",
        f"{_MAILBOAT}/broker/offsets.py",
        "if queue_offset < 0 or (self._resets and self.is_reset(group, topic, queue_id)):",
        "if queue_offset < 0:",
        ["tests/unit/mailboat/broker", "tests/integration/test_broker_offset_reset.py"],
    ),
    Plant(
        "master and slave: an answer does not wait for the slave",
        f"{_MAILBOAT}/replication/leading.py",
        "end = min(end, self.acked.get(member, 0))",
        "end = min(end, self.acked.get(member, end))",
        ["tests/unit/mailboat/replication", "tests/property/test_replication_simulation.py"],
    ),
    Plant(
        "client: what is being worked on is committed",
        f"{_MAILBOAT}/client/process_queue.py",
        "return offsets[0] if offsets else self.read_to\n\n    def holds",
        "return self.read_to\n\n    def holds",
        ["tests/unit/mailboat/client/test_process_queue.py"],
    ),
    Plant(
        "name server: a broker whose connection is gone stays in the routes",
        f"{_MAILBOAT}/namesrv/route_info.py",
        "if live.connection is connection and not live.is_away",
        "if live.connection is connection and live.is_away",
        ["tests/unit/mailboat/namesrv"],
    ),
    Plant(
        "operator: a second pod is taken while the first one is away",
        "operator/src/mailboat_operator/planner/rollout.py",
        "others = [other for other in members if other is not member]\n        wait",
        "others: list[Member] = []\n        wait",
        ["tests/unit/mailboat_operator/planner/test_rollout.py"],
    ),
    Plant(
        "Spark: messages that expired are passed over in silence",
        "spark/src/mailboat_spark/broker_client.py",
        "    if request.fail_on_data_loss:\n        raise DataLossError",
        "    if not request.fail_on_data_loss:\n        raise DataLossError",
        ["tests/spark/test_data_loss.py"],
    ),
    Plant(
        "core: a checksum keeps its highest bit",
        "core/wire/src/checksum.rs",
        "crc32fast::hash(body) & 0x7FFF_FFFF",
        "crc32fast::hash(body)",
        [],
    ),
)


def main(names: Sequence[str]) -> int:
    """Plant the defects whose names begin with one of some words; return the exit code."""
    chosen = [plant for plant in PLANTS if not names or plant.name.startswith(tuple(names))]
    missed = [plant.name for plant in chosen if not is_seen(plant)]
    for name in missed:
        print(f"== no test sees it: {name}")
    print(f"plants: {len(chosen)} planted, {len(missed)} not seen")
    return 1 if missed or not chosen else 0


def is_seen(plant: Plant) -> bool:
    """Tell whether tests fail with a defect in a copy of what is committed."""
    with tempfile.TemporaryDirectory(prefix="mailboat-plants-") as folder:
        copy = Path(folder, "tree")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
        path = copy / plant.path
        text = path.read_text()
        if text.count(plant.sound) != 1:
            print(f"== {plant.path} does not say once: {plant.sound}")
            return False
        path.write_text(text.replace(plant.sound, plant.broken))
        print(f"== planted: {plant.name}", flush=True)
        done = subprocess.run(
            _command(plant),
            cwd=copy,
            # Before the tree that is installed in this environment.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(str(copy / one) for one in _SOURCES)},
            timeout=_TIMEOUT_S,
            check=False,
        )
        return done.returncode == 1 if plant.tests else done.returncode not in (0, 127)


def _command(plant: Plant) -> list[str]:
    if not plant.tests:
        manifest = ["--manifest-path", "core/Cargo.toml", "--package", "mailboat-wire"]
        return ["cargo", "test", "--quiet", "--locked", *manifest]
    options = ["--quiet", "--exitfirst", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *options, *plant.tests]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
