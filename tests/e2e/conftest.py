"""Fixtures of the tests on a real cluster: the installed operator, namespaces, Java traffic.

They need KUBECONFIG, kubectl and helm, and the images that MAILBOAT_IMAGE and MAILBOAT_SPARK_IMAGE
name, loaded on the nodes. `make e2e` brings all of it.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from real_time import IS_TIMED
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Test folders are no packages, so the helper modules beside this file are found by path.
sys.path.insert(0, str(Path(__file__).parent))

from e2e_kube import Namespace
from e2e_traffic import TrafficPod
from interop_client import PATIENT

_OPERATOR = "MAILBOAT_TEST_E2E_OPERATOR"
_NEEDED = ("KUBECONFIG", "MAILBOAT_IMAGE", "MAILBOAT_SPARK_IMAGE", _OPERATOR)

_SPARK_JOBS = "test_spark_job.py"

NamespaceFactory = Callable[[], Namespace]


class Scheduling(LoadScopeScheduling):
    """Spark jobs run one behind the other, as one takes a processor; other tests go anywhere."""

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK_JOBS if _SPARK_JOBS in nodeid else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Spread the tests over the processes."""
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of this folder its marker; Spark jobs take longest, so they begin."""
    items.sort(key=lambda item: item.path.name != _SPARK_JOBS)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skipped test fail where everything is there that a test could need."""
    report = yield
    if report.skipped and Path(__file__).parent in item.path.parents:
        if os.environ.get("MAILBOAT_TEST_REQUIRE_ALL") == "1":
            report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def installed() -> str:
    """Return the namespace of the operator that tests/e2e/run has installed."""
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        pytest.fail(f"{', '.join(missing)} not set: run these tests with `make e2e`")
    return os.environ[_OPERATOR]


_numbers = itertools.count(1)


@pytest.fixture
def new_namespace(installed: str, request: pytest.FixtureRequest) -> Iterator[NamespaceFactory]:
    """Make namespaces that are deleted at the end of the test."""
    made: list[Namespace] = []

    def make() -> Namespace:
        name = (
            request.node.name.removeprefix("test_").replace("_", "-").split("[")[0][:40].strip("-")
        )
        made.append(Namespace(f"e2e-{os.getpid() % 1000}-{next(_numbers)}-{name}"[:60].strip("-")))
        return made[-1]

    yield make
    for namespace in made:
        namespace.delete()


@pytest.fixture
def namespace(new_namespace: NamespaceFactory) -> Namespace:
    """A namespace of the test's own."""
    return new_namespace()


@pytest.fixture
def traffic(
    new_namespace: NamespaceFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[TrafficPod]:
    """A pod with stock Java clients, in a namespace apart from what is tested.

    Where a test runs alone, or times count, its clients wait no longer than stock ones. Beside
    other tests an answer may take more than those 3 s.
    """
    is_alone = IS_TIMED or request.node.get_closest_marker("alone") is not None
    pod = TrafficPod(new_namespace(), tmp_path, {} if is_alone else PATIENT)
    yield pod
    pod.close()
