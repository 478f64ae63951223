"""Settings for the whole suite."""

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure: examples are bounded in number, and tests in time by pytest-timeout.
settings.register_profile("mailboat", deadline=None)
settings.load_profile("mailboat")


@pytest.fixture(scope="session", autouse=True)
def tidy_temporary_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Remove the stores of a run that passed, some 15 GB; those of a failed one are evidence."""
    yield
    if not request.session.testsfailed:
        shutil.rmtree(tmp_path_factory.getbasetemp(), ignore_errors=True)
