"""Fixtures of the operator's unit tests."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubernetes.aio.client import ApiClient, Configuration

# Test folders are no packages, so the helper modules beside this file are found by path.
sys.path.insert(0, str(Path(__file__).parent))

from fake_kubelet import Kubelet
from fake_kubernetes import FakeKubernetes
from reconciler_rig import Rig

from mailboat_operator.kube_api import KubeApi
from mailboat_operator.metrics import OperatorMetrics


@pytest.fixture
async def kubernetes() -> AsyncIterator[FakeKubernetes]:
    """A small API server on a free port."""
    server = FakeKubernetes()
    await server.start()
    yield server
    await server.close()


@pytest.fixture
def metrics() -> OperatorMetrics:
    """Metrics of this test alone."""
    return OperatorMetrics()


@pytest.fixture
async def api_client(kubernetes: FakeKubernetes) -> AsyncIterator[ApiClient]:
    """The `kubernetes` package's client, pointed at the fake server."""
    configuration = Configuration(host=kubernetes.url)
    configuration.client_session_kwargs = {"trust_env": False}
    async with ApiClient(configuration) as client:
        yield client


@pytest.fixture
def kube_api(api_client: ApiClient, metrics: OperatorMetrics) -> KubeApi:
    """Our API access, with more patience than a busy machine needs."""
    return KubeApi(api_client, metrics, timeout_s=30.0)


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """A node's kubelet."""
    kubelet = Kubelet(tmp_path)
    await kubelet.start()
    yield kubelet
    await kubelet.close()


@pytest.fixture
async def rig(kube_api: KubeApi, metrics: OperatorMetrics) -> AsyncIterator[Rig]:
    """A reconciler that knows one Broker's API server."""
    made = Rig(kube_api, metrics)
    yield made
    await made.brokers.close()
