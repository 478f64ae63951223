"""A route table whose clock stands still."""

import sys
from pathlib import Path

import pytest

# Test folders are no packages, so the helper module beside this file is found by path.
sys.path.insert(0, str(Path(__file__).parent))

from mailboat.namesrv.route_info import RouteInfoManager
from mailboat.testing.virtual_time import VirtualTime


@pytest.fixture
def clock() -> VirtualTime:
    """Return a clock that stands still."""
    return VirtualTime()


@pytest.fixture
def routes(clock: VirtualTime) -> RouteInfoManager:
    """Return an empty table."""
    return RouteInfoManager(clock=clock.monotonic, expired_timeout_s=120.0)
