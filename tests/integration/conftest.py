"""Fixtures of the integration tests."""

import sys
from collections.abc import AsyncIterator
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
