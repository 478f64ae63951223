"""Fixtures of the integration tests."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

# Test folders are no packages, so the helper modules beside this file are found by path.
sys.path.insert(0, str(Path(__file__).parent))

from raw_client import running_broker

from mailboat.broker.controller import BrokerController


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker."""
    async with running_broker(tmp_path) as controller:
        yield controller


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount file systems of a given size in memory, and take them away again."""
    mounted: list[Path] = []

    def mount(size_bytes: int) -> Path:
        path = tmp_path / f"volume-{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a volume needs the right to mount: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)
