"""Fixtures of the Spark tests.

They end with their module: a broker that ran on beside other tests would disturb those that need to
have Python's random numbers for themselves.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Test folders are no packages, so the helper modules beside this file are found by path.
sys.path.insert(0, str(Path(__file__).parent))

from live_cluster import LiveCluster

from mailboat_spark.client_thread import close_shared_clients
from mailboat_spark.session import end_java, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster with one broker, which gives 32 messages per pull as RocketMQ's does."""
    with LiveCluster(tmp_path_factory.mktemp("cluster")) as live:
        yield live
        close_shared_clients()


@pytest.fixture(scope="module")
def spark(short_dir: Path) -> Iterator[SparkSession]:
    """The Spark session of a module; starting Java is what costs most."""
    before = dict(os.environ)
    session = local_session(short_dir, app_name="mailboat tests")
    # Java and its workers have what they need; other tests get the environment as it was.
    os.environ.clear()
    os.environ.update(before)
    yield session
    session.stop()
    end_java()


@pytest.fixture(scope="module")
def short_dir() -> Iterator[Path]:
    """A folder with a path short enough for sockets, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="mailboat-") as folder:
        yield Path(folder)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name that no other test uses."""
    return request.node.name.replace("[", "-").replace("]", "")[:100]
