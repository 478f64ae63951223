"""Whose store a directory is."""

import json

import pytest

from mailboat.broker.identity import check_identity, write_identity
from mailboat.config import BrokerConfig
from mailboat.disk import read_file, replace_file
from mailboat.errors import DamagedStoreError
from mailboat.testing.simulated_disk import SimulatedDisk

PATH = "/store/mailboat/identity.json"
ORDERS = BrokerConfig(broker_name="orders-g0", broker_cluster_name="orders")


@pytest.fixture
def disk() -> SimulatedDisk:
    """Return a disk with the store's own directory."""
    disk = SimulatedDisk()
    disk.make_dirs("/store/mailboat")
    return disk


def test_a_new_directory_is_adopted_and_remembered(disk: SimulatedDisk) -> None:
    """The file says who and since when; the second start changes nothing."""
    check_identity(disk, PATH, ORDERS)
    identity = write_identity(disk, PATH, ORDERS)
    content = read_file(disk, PATH)
    found = json.loads(content)
    assert found.pop("created").endswith("+00:00")
    assert found.pop("id") == identity
    assert len(identity) == 32
    assert found == {
        "format_version": 1,
        "clusterName": "orders",
        "brokerName": "orders-g0",
        "brokerId": 0,
    }
    check_identity(disk, PATH, ORDERS)
    assert write_identity(disk, PATH, ORDERS) == identity
    assert read_file(disk, PATH) == content


def test_a_directory_of_an_earlier_version_is_known_by_its_time(disk: SimulatedDisk) -> None:
    """Nothing is written: a full disk keeps no broker from starting."""
    known = {"clusterName": "orders", "brokerName": "orders-g0", "brokerId": 0}
    known |= {"format_version": 1, "created": "2026-11-21T10:00:00+00:00"}
    replace_file(disk, PATH, json.dumps(known).encode())
    assert write_identity(disk, PATH, ORDERS) == "2026-11-21T10:00:00+00:00"
    assert json.loads(read_file(disk, PATH)) == known


@pytest.mark.parametrize(
    "other",
    [
        BrokerConfig(broker_name="orders-g1", broker_cluster_name="orders"),
        BrokerConfig(broker_name="orders-g0", broker_cluster_name="payments"),
    ],
)
def test_the_store_of_another_broker_is_refused(disk: SimulatedDisk, other: BrokerConfig) -> None:
    """One sentence names both and the way to rename on purpose; the exit code is 4."""
    write_identity(disk, PATH, other)
    with pytest.raises(DamagedStoreError) as caught:
        check_identity(disk, PATH, ORDERS)
    assert caught.value.exit_code == 4
    assert f"{other.broker_name} (cluster {other.broker_cluster_name}, id 0)" in str(caught.value)
    assert "orders-g0 (cluster orders, id 0)" in str(caught.value)
    assert f"delete {PATH}" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"brokerName": 1}'])
def test_a_file_that_says_nothing_is_refused(disk: SimulatedDisk, content: bytes) -> None:
    """Whose store it is must not be guessed; the remedy is in the sentence."""
    replace_file(disk, PATH, content)
    with pytest.raises(DamagedStoreError, match="delete the file"):
        check_identity(disk, PATH, ORDERS)


def test_a_newer_format_is_refused(disk: SimulatedDisk) -> None:
    """An older program does not know what a newer one relies on."""
    identity = {"format_version": 2, "clusterName": "c", "brokerName": "b", "brokerId": 0}
    replace_file(disk, PATH, json.dumps(identity).encode())
    with pytest.raises(DamagedStoreError, match="newer mailboat"):
        check_identity(disk, PATH, ORDERS)
