"""A slave of ours below a real master of RocketMQ: the whole history, and what comes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop_client import Event, JavaClient
from interop_process import MailboatStandalone
from interop_servers import JavaServer, free_broker_port
from interop_wire import brokers_of, log_end, queue_records, records, wait_until

if TYPE_CHECKING:
    from conftest import JavaBrokerFactory, JavaClientFactory, MailboatFactory

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEGMENT_BYTES = 1 << 20
TOPIC, QUEUES = "followed", 3
NAME = "broker-a"
LINES = ["4.9.7", "5.5.0"]
_FOLLOWS_S = 30.0


class Pair:
    """A Java master and a slave of ours."""

    def __init__(
        self, root: Path, start_master: JavaBrokerFactory, start_slave: MailboatFactory
    ) -> None:
        """Keep the stores below `root`."""
        self.root = root
        self._start_master = start_master
        self._start_slave = start_slave
        self._port, self._slave_port = free_broker_port(), free_broker_port()
        self.address = f"127.0.0.1:{self._port}"
        self.slave_address = f"127.0.0.1:{self._slave_port}"

    def start_master(
        self, line: str, namesrv: str, store: str = "master", **config: object
    ) -> JavaServer:
        """Start the master."""
        return self._start_master(
            line,
            self.root / store,
            namesrv,
            port=self._port,
            name=NAME,
            config={"mappedFileSizeCommitLog": SEGMENT_BYTES, **config},
        )

    def start_slave(self, namesrv: str, **config: object) -> MailboatStandalone:
        """Start the slave, which knows the topic: it does not ask for topics."""
        path = self.root / "slave" / "config" / "topics.json"
        path.parent.mkdir(parents=True)
        topic = {
            "topicName": TOPIC,
            "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
        path.write_text(json.dumps({"dataVersion": version, "topicConfigTable": {TOPIC: topic}}))
        slave: dict[str, object] = {
            "brokerName": NAME,
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": namesrv,
            "slaveReadEnable": "true",
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
        }
        return self._start_slave(
            self.root / "slave", broker_port=self._slave_port, **(slave | config)
        )

    def wait_equal(self) -> int:
        """Wait until the slave has all that the master has; return where their logs end."""
        end = log_end(self.address)
        assert end > 0
        wait_until(
            lambda: log_end(self.slave_address) >= end, _FOLLOWS_S, f"the slave has it up to {end}"
        )
        assert log_end(self.slave_address) == end
        assert records(self.root / "slave", end) == records(self.root / "master", end)
        return end

    def check_queues(self, count: int) -> None:
        """Check that the slave gives every message that the master gives, byte by byte."""
        theirs = [queue_records(self.address, TOPIC, queue) for queue in range(QUEUES)]
        ours = [queue_records(self.slave_address, TOPIC, queue) for queue in range(QUEUES)]
        assert ours == theirs
        assert sum(found.count(b"UNIQ_KEY") for found in theirs) == count


def _send(
    client: JavaClient, count: int, body: bytes = b"m" * 3000, **params: object
) -> list[Event]:
    encoded = base64.b64encode(body).decode()
    return client.call("send", topic=TOPIC, body=encoded, group="sender", count=count, **params)


@pytest.fixture
def pair(
    tmp_path: Path, mailboat_standalone: MailboatFactory, java_broker: JavaBrokerFactory
) -> Pair:
    """A Java master and a slave of ours that are not started."""
    return Pair(tmp_path, java_broker, mailboat_standalone)


@pytest.mark.parametrize("line", LINES)
def test_our_slave_gets_the_whole_history(
    line: str,
    pair: Pair,
    java_namesrv: Callable[[str], str],
    new_java_client: JavaClientFactory,
) -> None:
    """From the first byte on, over several segments; then what Java clients send meanwhile."""
    namesrv = java_namesrv(line)
    master = pair.start_master(line, namesrv)
    client = new_java_client({"4.9.7": "4.9.8"}.get(line, line), namesrv)
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    _send(client, 900)
    slave = pair.start_slave(namesrv)
    both = {0: pair.address, 1: pair.slave_address}
    wait_until(lambda: brokers_of(namesrv, NAME) == both, _FOLLOWS_S, "both are registered")
    end = pair.wait_equal()
    assert end > 2 * SEGMENT_BYTES
    _send(client, 400, mode="async")
    _send(client, 20, mode="batch")
    _send(client, 3, b"large " * 60_000, exact="true")
    pair.wait_equal()
    pair.check_queues(1323)
    client.close()
    slave.terminate()
    master.stop()


@pytest.mark.parametrize("line", LINES)
def test_our_slave_and_its_java_master_restart(
    line: str,
    pair: Pair,
    java_namesrv: Callable[[str], str],
    new_java_client: JavaClientFactory,
) -> None:
    """Either side is killed, or ended in order, and the log goes on where it was."""
    namesrv = java_namesrv(line)
    master = pair.start_master(line, namesrv)
    slave = pair.start_slave(namesrv)
    client = new_java_client({"4.9.7": "4.9.8"}.get(line, line), namesrv)
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    _send(client, 50)
    pair.wait_equal()
    slave.kill()
    _send(client, 400)
    slave.start()
    end = pair.wait_equal()
    slave.terminate()
    slave.start()
    # What was shown before is shown at once, before the master is asked.
    pair.check_queues(450)
    assert log_end(pair.slave_address) == end
    master.kill()
    master = pair.start_master(line, namesrv)
    _send(client, 400)
    pair.wait_equal()
    pair.check_queues(850)
    client.close()
    slave.terminate()
    master.stop()


@pytest.mark.parametrize("line", LINES)
def test_a_java_sync_master_counts_our_slave(
    line: str,
    pair: Pair,
    java_namesrv: Callable[[str], str],
    new_java_client: JavaClientFactory,
) -> None:
    """It answers SEND_OK once our slave has flushed, and at once."""
    namesrv = java_namesrv(line)
    master = pair.start_master(line, namesrv, brokerRole="SYNC_MASTER", inSyncReplicas=2)
    slave = pair.start_slave(namesrv, flushDiskType="SYNC_FLUSH")
    client = new_java_client({"4.9.7": "4.9.8"}.get(line, line), namesrv)
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    # The first ones find no slave: it begins once there is a log.
    _send(client, 1)
    pair.wait_equal()
    begin_s = time.monotonic()
    sent = _send(client, 50)
    assert [event["status"] for event in sent] == ["SEND_OK"] * 50
    assert time.monotonic() - begin_s < 20
    pair.wait_equal()
    client.close()
    slave.terminate()
    master.stop()


@pytest.mark.parametrize("line", LINES)
def test_a_diverged_log_is_left_alone(
    line: str,
    pair: Pair,
    java_namesrv: Callable[[str], str],
    new_java_client: JavaClientFactory,
) -> None:
    """A master with another log, shorter or longer, is not followed, and nothing is overwritten."""
    namesrv = java_namesrv(line)
    master = pair.start_master(line, namesrv)
    slave = pair.start_slave(namesrv)
    client = new_java_client({"4.9.7": "4.9.8"}.get(line, line), namesrv)
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    _send(client, 50)
    end = pair.wait_equal()
    kept = records(pair.root / "slave", end)
    master.stop()

    master = pair.start_master(line, namesrv, "other")
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    _send(client, 10)
    wait_until(lambda: "have diverged" in slave.log_tail(), _FOLLOWS_S, "it is noticed")
    assert "ends at" in slave.log_tail()
    _send(client, 200)
    assert log_end(pair.address) > end
    wait_until(lambda: "another log" in slave.log_tail(), _FOLLOWS_S, "it is noticed again")
    assert log_end(pair.slave_address) == end
    assert records(pair.root / "slave", end) == kept
    client.close()
    slave.terminate()
    master.stop()
