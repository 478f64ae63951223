"""Settings for the whole suite."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiled_core import NeedsCore
from hypothesis import settings
from loop_holds import EXEMPT, LoopHolds
from machine_halts import MachineHalts
from planted_delays import plant_late_registration, planted

# A busy machine is no failure: examples are bounded in number, and tests in time by pytest-timeout.
settings.register_profile("mailboat", deadline=None)
settings.load_profile("mailboat")

TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Watch halts of the machine and holds of the loop, and plant the delay asked for."""
    config.pluginmanager.register(NeedsCore(), "needs_core")
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
        list(EXEMPT),
    )
    holds.install()
    config.pluginmanager.register(holds, "loop_holds")
    config.add_cleanup(holds.close)


@pytest.fixture(scope="session")
def machine_halts(request: pytest.FixtureRequest) -> MachineHalts:
    """Return what knows when the machine stood still."""
    return request.config.pluginmanager.get_plugin("machine_halts")


@pytest.fixture(scope="session", autouse=True)
def tidy_temporary_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Remove the stores of a run that passed, some 15 GB; those of a failed one are evidence."""
    yield
    if not request.session.testsfailed:
        shutil.rmtree(tmp_path_factory.getbasetemp(), ignore_errors=True)
