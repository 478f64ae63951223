"""The real mqadmin 5.5.0 about a master and its slave: `mailboat standalone --replicas 2`."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from interop_process import LineProcess
from machine_halts import MachineHalts
from mqadmin_tools import MqAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

LINE = "5.5.0"
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Pair:
    """A master with messages, a slave that has them all, and mqadmin."""

    admin: MqAdmin
    brokers: list[str]
    """Addresses of master and slave."""

    status: dict[str, Any]
    """What the master says of itself over HTTP."""


def _status(http: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{http}/api/v1/replica") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _until_in_sync(http: list[str]) -> dict[str, Any]:
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        master, slave = map(_status, http)
        if master["in_sync"] == [0, 1] and slave["confirmed_offset"] == master["end"]:
            return master
        time.sleep(0.1)
    raise AssertionError(f"the slave is not in sync: {master} {slave}")


@pytest.fixture(scope="module")
def pair(
    java_classpath: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
    machine_halts: MachineHalts,
) -> Iterator[Pair]:
    """Start the pair, and send it a message with mqadmin."""
    java_classpath("client", LINE)
    folder = tmp_path_factory.mktemp("mqadmin-replicas")
    words = ["standalone", "--replicas", "2", "--ready-json", "--data-dir", str(folder / "data")]
    for role in ("namesrv", "broker", "http"):
        words += [f"--{role}-port", "0"]
    process = LineProcess([sys.executable, "-m", "mailboat.cli", *words], folder / "mailboat.out")
    try:
        ready = json.loads(process.wait_line(lambda text: text.startswith("{"), 60))
        brokers = list(ready["brokers"].values())
        http = [each["http"] for each in brokers]
        _until_in_sync(http)
        admin = MqAdmin(LINE, ready["namesrv"], folder / "mqadmin")
        try:
            admin.run("updateTopic", "-c", "DefaultCluster", "-t", "T")
            sent = admin.run("sendMessage", "-t", "T", "-p", "hello")
            assert "SEND_OK" in sent.text, sent.text
            yield Pair(admin, [each["broker"] for each in brokers], _until_in_sync(http))
        finally:
            admin.close()
    finally:
        process.terminate(timeout_s=30)


def test_ha_status_of_the_master(pair: Pair) -> None:
    """The slave has everything, and is in sync."""
    lines = pair.admin.run("haStatus", "-b", pair.brokers[0]).lines
    end = pair.status["end"]
    assert lines[:4] == [
        f"#MasterAddr\t{pair.brokers[0]}",
        f"#MasterCommitLogMaxOffset\t{end}",
        "#SlaveNum\t1",
        "#InSyncSlaveNum\t1",
    ]
    address, acked, diff, _, is_ok, sent = lines[5].split()
    assert address == pair.status["peers"][0]["address"]
    assert (int(acked), int(diff), is_ok, int(sent)) == (end, 0, "OK", end)


def test_ha_status_of_the_slave(pair: Pair) -> None:
    """It names its master, and how far it is; times are of the last seconds."""
    lines = pair.admin.run("haStatus", "-b", pair.brokers[1]).lines
    shown = dict(line.split("\t") for line in lines)
    end = str(pair.status["end"])
    assert re.fullmatch(r"127\.0\.0\.1:\d+", shown["#MasterAddr"])
    assert shown["#MasterAddr"] not in pair.brokers
    assert (shown["#CommitLogMaxOffset"], shown["#MasterFlushOffset"]) == (end, end)
    for name in ("#LastReadTime", "#LastWriteTime"):
        shown_s = time.mktime(time.strptime(shown[name].split(",")[0], "%Y-%m-%d %H:%M:%S"))
        assert abs(time.time() - shown_s) < 10, shown


def test_epochs_of_both(pair: Pair) -> None:
    """One epoch from the beginning on, with the same end on both."""
    text = pair.admin.run("getBrokerEpoch", "-b", "broker-a").text
    assert sorted(re.findall(r"#brokerAddr\t(\S+)", text)) == sorted(pair.brokers)
    assert sorted(re.findall(r"#brokerId\t(\d+)", text)) == ["0", "1"]
    epoch, end = pair.status["epoch"], pair.status["end"]
    entries = re.findall(
        r"#Epoch: EpochEntry\{epoch=(\d+), startOffset=(\d+), endOffset=(\d+)", text
    )
    assert entries == [(str(epoch), "0", str(end))] * 2


def test_the_cluster_has_a_line_for_each(pair: Pair) -> None:
    """The master with id 0 is active, the slave with id 1 is not."""
    rows = pair.admin.run("clusterList").rows("#Cluster Name")
    found = {(row[1], row[2]): row for row in rows}
    master, slave = found["broker-a", "0"], found["broker-a", "1"]
    assert (master[3], slave[3]) == tuple(pair.brokers)
    assert (master[-1], slave[-1]) == ("true", "false")


def test_status_of_both(pair: Pair) -> None:
    """Both have the same end of the log."""
    for broker, is_active in zip(pair.brokers, ("true", "false"), strict=True):
        text = pair.admin.run("brokerStatus", "-b", broker).text
        assert re.search(rf"commitLogMaxOffset\s*: {pair.status['end']}\n", text), text
        assert re.search(rf"brokerActive\s*: {is_active}\n", text), text
