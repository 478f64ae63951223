"""The store keeps its promises over thousands of simulated crashes.

`MAILBOAT_TEST_CRASH_STATES` sets how many crash states are checked (5,200 by default). A violation
names its seed, and `StoreSimulator(seed, flush_disk_type, with_failures=...).run()` repeats it.
"""

import logging
import os

import pytest
from daily import some_of
from promises import promised

from mailboat.testing.store_simulator import StoreSimulator

_STATES = int(os.environ.get("MAILBOAT_TEST_CRASH_STATES", "5200"))

pytestmark = pytest.mark.usefixtures("slow_index")


@pytest.mark.parametrize("flush_disk_type", some_of(["ASYNC_FLUSH", "SYNC_FLUSH"], 1))
@pytest.mark.parametrize(
    "with_failures",
    [
        pytest.param(False, marks=pytest.mark.slow, id="crashes"),
        pytest.param(True, id="crashes-and-errors"),
    ],
)
def test_every_promise_holds_after_every_crash(
    flush_disk_type: str, with_failures: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a power cut, a kill or a failing disk leaves, recovery finds what was promised."""
    caplog.set_level(logging.CRITICAL, "mailboat")
    states = 0
    seed = 100_000 * with_failures
    while states < _STATES / 4:
        simulator = StoreSimulator(seed, flush_disk_type, with_failures=with_failures)
        with promised(f"seed {seed}, {flush_disk_type}, with_failures={with_failures}"):
            simulator.run()
        states += simulator.crash_states
        seed += 1


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_seed_decides_everything(flush_disk_type: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same seed sends the same messages to the same places, so a violation can be repeated."""
    caplog.set_level(logging.CRITICAL, "mailboat")
    stories = []
    for _ in range(2):
        simulator = StoreSimulator(11, flush_disk_type)
        simulator.run()
        story = [(str(sent), sent.body) for sent in simulator.history.sent]
        stories.append((simulator.crash_states, story))
    assert stories[0] == stories[1]
    assert len(stories[0][1]) > 20
