"""Settings for the whole suite."""

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings
from machine_halts import MachineHalts

# A busy machine is no failure: examples are bounded in number, and tests in time by pytest-timeout.
settings.register_profile("mailboat", deadline=None)
settings.load_profile("mailboat")


def pytest_configure(config: pytest.Config) -> None:
    """Watch for halts of the machine."""
    halts = MachineHalts()
    config.pluginmanager.register(halts, "machine_halts")
    config.add_cleanup(halts.close)


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
