"""Settings for the whole suite."""

import itertools
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from compiled_core import NeedsCore
from failure_records import records_of
from hypothesis import settings
from loop_holds import LoopHolds
from machine_halts import MachineHalts
from planted_delays import plant_late_registration, planted

from mailboat.testing.virtual_time import VirtualTime

# A busy machine is no failure: examples are bounded in number, and tests in time by pytest-timeout.
settings.register_profile("mailboat", deadline=None)
settings.load_profile("mailboat")

TESTS = Path(__file__).parent
SLOW_FOLDERS = ("faults", "interop", "spark")
"""They are not in `make test`, but for one short test of each kind, which is marked `quick`."""

WAITING_FOLDERS = (*SLOW_FOLDERS, "integration")
"""Their tests wait for servers and clocks most of the time."""

_HAS_FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Watch halts of the machine and holds of the loop, and plant the delay asked for."""
    # A shell's background job ignores interrupts, and so would the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(NeedsCore(), "needs_core")
    config.pluginmanager.register(records_of(config), "failure_records")
    if planted():
        patch = pytest.MonkeyPatch()
        plant_late_registration(patch)
        config.add_cleanup(patch.undo)
    halts = MachineHalts()
    config.pluginmanager.register(halts, "machine_halts")
    config.add_cleanup(halts.close)
    holds = LoopHolds(
        halts,
        [TESTS / "integration", TESTS / "property"],
        TESTS.parent / "broker" / "src" / "mailboat",
    )
    holds.install()
    config.pluginmanager.register(holds, "loop_holds")
    config.add_cleanup(holds.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not in `make test`, and mix files that wait with files that compute.

    Else the processes of a stage would wait together, and later compute together.
    """
    waiting, computing = [], []
    for path, tests in itertools.groupby(items, key=lambda item: item.path):
        file = list(tests)
        folder = path.relative_to(TESTS).parts[0]
        if folder in SLOW_FOLDERS:
            for item in file:
                item.add_marker(pytest.mark.slow)
        (waiting if folder in WAITING_FOLDERS else computing).append(file)
    turns = itertools.zip_longest(waiting, computing, fillvalue=())
    items[:] = [item for turn in turns for file in turn for item in file]


@pytest.fixture(scope="session")
def machine_halts(request: pytest.FixtureRequest) -> MachineHalts:
    """Return what knows when the machine stood still."""
    return request.config.pluginmanager.get_plugin("machine_halts")


@pytest.fixture
async def driven_time() -> AsyncIterator[VirtualTime]:
    """Return the time in which the test's event loop lives; see `VirtualTime.driving_loop`."""
    time = VirtualTime()
    with time.driving_loop():
        yield time


def pytest_sessionstart(session: pytest.Session) -> None:
    """Nothing has failed yet."""
    session.stash[_HAS_FAILED] = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests failed."""
    report = yield
    item.stash[_HAS_FAILED] = report.failed or (call.when != "setup" and item.stash[_HAS_FAILED])
    # The session itself counts a failure only once all fixtures are gone.
    item.session.stash[_HAS_FAILED] |= report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Remove the folder of a test that passed; that of one that failed is evidence.

    Together they are some 15 GB, and brokers refuse sends above 90 % of the disk. pytest's own
    policy removes a folder before the fixtures that were there earlier have let go of it.
    """
    yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None and not item.stash.get(_HAS_FAILED, True):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def tidy_temporary_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Remove what fixtures of several tests left, if all passed."""
    yield
    if not request.session.stash[_HAS_FAILED]:
        shutil.rmtree(tmp_path_factory.getbasetemp(), ignore_errors=True)
