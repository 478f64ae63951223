"""Fixtures of the operator's integration tests: the whole process against a small API server."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

# The fake API server is a helper of the unit tests; test folders are no packages.
sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "unit" / "mailboat_operator"))

from fake_kubernetes import FakeKubernetes

_ROOT = Path(__file__).parents[3]
_SOURCES = ("broker/src", "operator/src")


@dataclass
class OperatorProcess:
    """One running `python -m mailboat_operator`."""

    process: asyncio.subprocess.Process
    log: Path
    port: int

    async def probe(self, path: str) -> tuple[int, str]:
        """GET one of the operator's own paths."""
        timeout = aiohttp.ClientTimeout(total=5)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as response,
        ):
            return response.status, await response.text()

    async def wait_for_probe(
        self, path: str, is_wanted: Callable[[int, str], bool], timeout_s: float
    ) -> str:
        """Ask a path until the answer is as wanted."""
        async with asyncio.timeout(timeout_s):
            while True:
                status, text = await self.probe(path)
                if is_wanted(status, text):
                    return text
                await asyncio.sleep(0.1)


StartOperator = Callable[..., Awaitable[OperatorProcess]]


@pytest.fixture
async def kubernetes() -> AsyncIterator[FakeKubernetes]:
    """A small API server on a free port."""
    server = FakeKubernetes()
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def start_operator(
    kubernetes: FakeKubernetes, tmp_path: Path
) -> AsyncIterator[StartOperator]:
    """Starts operator processes; what still runs at the end of the test is killed."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(_kubeconfig(kubernetes.url), encoding="ascii")
    started: list[OperatorProcess] = []

    async def start(
        name: str = "operator-0", *, tree: Path = _ROOT, **settings: str
    ) -> OperatorProcess:
        log = tmp_path / f"{name}.log"
        environment = _environment(kubeconfig, name, settings)
        environment["PYTHONPATH"] = os.pathsep.join(str(tree / folder) for folder in _SOURCES)
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "mailboat_operator",
                env=environment,
                stderr=stream,
                stdout=stream,
            )
        operator = OperatorProcess(process, log, 0)
        started.append(operator)
        operator.port = await _port_of(operator)
        return operator

    yield start
    for operator in started:
        if operator.process.returncode is None:
            operator.process.kill()
        await operator.process.wait()


async def _port_of(operator: OperatorProcess) -> int:
    async with asyncio.timeout(30):
        while True:
            text = operator.log.read_text(encoding="utf-8")
            if "metrics on port " in text:
                return int(text.split("metrics on port ", 1)[1].split('"', 1)[0])
            if operator.process.returncode is not None:
                raise AssertionError(f"the operator ended:\n{text}")
            await asyncio.sleep(0.05)


def _environment(kubeconfig: Path, name: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("MAILBOAT_")},
        "KUBECONFIG": str(kubeconfig),
        "MAILBOAT_OPERATOR_IMAGE": "registry.example/mailboat:1",
        "MAILBOAT_OPERATOR_POD_NAME": name,
        "MAILBOAT_OPERATOR_POD_NAMESPACE": "system",
        "MAILBOAT_OPERATOR_HTTP_HOST": "127.0.0.1",
        "MAILBOAT_OPERATOR_HTTP_PORT": "0",
        **{f"MAILBOAT_OPERATOR_{key.upper()}": value for key, value in settings.items()},
    }


def _kubeconfig(url: str) -> str:
    return f"""
apiVersion: v1
kind: Config
current-context: fake
clusters: [{{name: fake, cluster: {{server: "{url}"}}}}]
users: [{{name: fake, user: {{token: secret}}}}]
contexts: [{{name: fake, context: {{cluster: fake, user: fake, namespace: default}}}}]
"""
