"""Real slaves of RocketMQ below a master of ours: the same log, served when the master is gone."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop_client import JavaClient
from interop_process import MailboatStandalone
from interop_servers import JavaServer, free_broker_port
from interop_wire import (
    brokers_of,
    has_group_offset,
    log_end,
    queue_records,
    queued,
    segments,
    topic_names,
    wait_queued,
    wait_until,
)
from promises import promised

if TYPE_CHECKING:
    from conftest import JavaBrokerFactory, JavaClientFactory, MailboatFactory

pytestmark = [pytest.mark.interop, pytest.mark.one_line_a_day, pytest.mark.timeout(600)]

SEGMENT_BYTES = 1 << 20
TOPIC, QUEUES, GROUP = "followed", 3, "readers"
NAME = "broker-a"
LINES = ["4.9.7", "5.5.0"]
# A slave of 4.9 reports after 6 s, connects anew each 5 s, and asks for topics each 10 s.
FOLLOWS_S = 40.0
# 5.5 asks for topics for the first time after 63 s.
TOPICS_S = 90.0


class Pair:
    """A master of ours and a Java slave that follows it."""

    def __init__(
        self,
        root: Path,
        start_master: MailboatFactory,
        start_slave: JavaBrokerFactory,
        **config: object,
    ) -> None:
        """Keep the stores below `root`; `config` goes to the master."""
        self.root = root
        self._start_slave = start_slave
        self._port, self._slave_port = free_broker_port(), free_broker_port()
        self.master: MailboatStandalone = start_master(
            root / "master",
            broker_port=self._port,
            brokerName=NAME,
            mappedFileSizeCommitLog=SEGMENT_BYTES,
            haListenPort=self._port + 1,
            brokerIP1="127.0.0.1",
            **config,
        )
        self.address = self.master.ready.broker
        self.slave_address = f"127.0.0.1:{self._slave_port}"

    @property
    def master_dir(self) -> Path:
        """The master's store."""
        return self.root / "master"

    def start_slave(self, line: str, namesrv: str) -> JavaServer:
        """Start the slave and wait until the name server knows both."""
        slave = self._start_slave(
            line,
            self.root / "slave",
            namesrv,
            port=self._slave_port,
            name=NAME,
            config={
                "brokerRole": "SLAVE",
                "brokerId": 1,
                "mappedFileSizeCommitLog": SEGMENT_BYTES,
                "slaveReadEnable": "true",
            },
        )
        both = {0: self.address, 1: self.slave_address}
        wait_until(lambda: brokers_of(namesrv, NAME) == both, FOLLOWS_S, "both registered")
        return slave

    def start_master_again(self) -> None:
        """Start the master at the same ports and wait until it leads."""
        namesrv = self.master.start().namesrv
        wait_until(lambda: 0 in brokers_of(namesrv, NAME), FOLLOWS_S, "the master leads")

    def wait_equal(self) -> int:
        """Wait until the slave has all that the master has; return where their logs end."""
        end = log_end(self.address)
        wait_until(
            lambda: log_end(self.slave_address) == end, FOLLOWS_S, f"the slave has it up to {end}"
        )
        ours, theirs = segments(self.master_dir, end), segments(self.root / "slave", end)
        with promised("a slave has its master's log"):
            assert theirs == ours
            assert len(ours) == end
        return end

    def check_queues(self, *, served_by: str, count: int) -> None:
        """Check that a server gives every message of the master's log."""
        wait_until(
            lambda: TOPIC in topic_names(self.slave_address), TOPICS_S, "the slave has the topic"
        )
        wait_queued((served_by, self.address), TOPIC, QUEUES, count)
        served = [queue_records(served_by, TOPIC, queue) for queue in range(QUEUES)]
        ours = [queue_records(self.address, TOPIC, queue) for queue in range(QUEUES)]
        with promised("a slave serves nothing but what its master serves"):
            for one, other in zip(served, ours, strict=True):
                assert other.startswith(one)
        assert served == ours
        assert sum(records.count(b"UNIQ_KEY") for records in ours) == count


def _send(client: JavaClient, count: int, body: bytes = b"m" * 3000, **params: object) -> None:
    encoded = base64.b64encode(body).decode()
    client.call("send", topic=TOPIC, body=encoded, group="sender", count=count, **params)


@pytest.fixture
def pair(
    tmp_path: Path, mailboat_standalone: MailboatFactory, java_broker: JavaBrokerFactory
) -> Callable[..., Pair]:
    """Return a function that starts a master for a Java slave."""

    def start(**config: object) -> Pair:
        return Pair(tmp_path, mailboat_standalone, java_broker, **config)

    return start


SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 1, "totalReplicas": 1}


@pytest.mark.parametrize("line", LINES)
def test_a_java_slave_serves_when_our_master_is_gone(
    line: str,
    pair: Callable[..., Pair],
    java_namesrv: Callable[[str], str],
    new_java_client: JavaClientFactory,
) -> None:
    """The slave gets what was stored before it came, over several segments, and what comes."""
    namesrv = java_namesrv(line)
    both = pair(namesrvAddr=namesrv, **SYNC)
    client = new_java_client({"4.9.7": "4.9.8"}.get(line, line), namesrv)
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    _send(client, 600)
    # The group comes into being with its first consumer.
    client.call("lite", topic=TOPIC, group=GROUP, count=1, uncommitted="true")
    client.call("committed", topic=TOPIC, group=GROUP, commit=25)
    slave = both.start_slave(line, namesrv)
    both.wait_equal()
    # Beyond the end of a segment while it follows, with messages larger than a frame.
    _send(client, 300)
    _send(client, 3, b"large " * 60_000, exact="true")
    end = both.wait_equal()
    assert end > 2 * SEGMENT_BYTES
    both.check_queues(served_by=both.slave_address, count=903)
    # Asked for together with the topics, by the codes 43, 45 and 201.
    wait_until(
        lambda: has_group_offset(both.slave_address, TOPIC, GROUP, 25), FOLLOWS_S, "the offsets"
    )
    assert (both.root / "slave" / "config" / "delayOffset.json").exists()

    expected = 903
    both.master.terminate()
    wait_until(lambda: set(brokers_of(namesrv, NAME)) == {1}, FOLLOWS_S, "only the slave is known")
    consumer = client.start("push", topic=TOPIC, group="late-group")
    received = consumer.wait_messages(expected, 90)
    client.call("stop", handle=consumer.number)
    places = Counter((message["queueId"], message["queueOffset"]) for message in received)
    assert len(places) == expected
    client.close()
    slave.stop()


@pytest.mark.parametrize("line", LINES)
def test_a_java_slave_and_our_master_restart(
    line: str,
    pair: Callable[..., Pair],
    new_java_client: JavaClientFactory,
) -> None:
    """With a name server of ours: either side goes and comes back, also by force."""
    both = pair(brokerRole="ASYNC_MASTER", totalReplicas=1, inSyncReplicas=1)
    namesrv = both.master.ready.namesrv
    client = new_java_client({"4.9.7": "4.9.8"}.get(line, line), namesrv)
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    slave = both.start_slave(line, namesrv)
    _send(client, 200)
    both.wait_equal()
    slave.kill()
    _send(client, 400)
    slave = both.start_slave(line, namesrv)
    both.wait_equal()
    both.master.kill()
    both.start_master_again()
    _send(client, 400)
    both.wait_equal()
    slave.stop()
    both.master.terminate()
    both.start_master_again()
    slave = both.start_slave(line, namesrv)
    _send(client, 10)
    both.wait_equal()
    wait_until(lambda: queued(both.root / "slave", TOPIC) == 1010, FOLLOWS_S, "all are queued")
    client.close()
    slave.stop()
