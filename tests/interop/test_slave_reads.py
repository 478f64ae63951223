"""Stock consumers while a master is away: at RocketMQ's pair of brokers, and at ours.

The same is done to both, and what consumers see is compared: the master is killed, they read on at
the slave and commit there, the master comes back.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest
from interop_client import JavaClient, JavaClientError
from interop_jars import CLIENT_LINES
from interop_servers import free_broker_port
from interop_wire import brokers_of, group_offsets, log_end, queue_end, topic_names, wait_until

from mailboat.cli.replica.broker_http import BrokerHttp
from mailboat.cli.replica.broker_http import ask as ask_http

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import JavaBrokerFactory, JavaClientFactory, MailboatFactory
    from interop_process import MailboatStandalone
    from interop_servers import JavaServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

GROUP, QUEUES = "readers", 2
FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
_SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
_SEGMENTS = {"mappedFileSizeCommitLog": 1 << 20}
# A slave of 5.5 had no offsets of consumers after two minutes, where the clients' are needed here.
_SERVER = "4.9.7"
# It reports after 6 s, and asks for tables each 10 s.
_LEVEL_S = 40.0
_SOON_S = 40.0


class Pair(Protocol):
    """A master and a slave of one name."""

    name: str
    address: str
    slave_address: str
    master_dir: Path

    def start(self) -> None:
        """Start both."""

    def kill_master(self) -> None:
        """Kill the master."""

    def start_master(self) -> None:
        """Start the master."""

    def end(self) -> None:
        """End both."""


class JavaBrokers:
    """RocketMQ's pair."""

    name = "reads-java"

    def __init__(self, line: str, root: Path, namesrv: str, start: JavaBrokerFactory) -> None:
        """Keep the stores below `root`."""
        self._line, self._root, self._namesrv, self._start = line, root, namesrv, start
        self._port, self._slave_port = free_broker_port(), free_broker_port()
        self.address = f"127.0.0.1:{self._port}"
        self.slave_address = f"127.0.0.1:{self._slave_port}"
        self.master_dir = root / "java-master"
        self._servers: dict[str, JavaServer] = {}

    def start(self) -> None:
        """Start both."""
        self.start_master()
        self._run("slave", self._slave_port, _SLAVE)

    def start_master(self) -> None:
        """Start the master."""
        self._run("master", self._port, {"slaveReadEnable": "true"})

    def _run(self, role: str, port: int, config: dict[str, object]) -> None:
        self._servers[role] = self._start(
            self._line,
            self._root / f"java-{role}",
            self._namesrv,
            port=port,
            name=self.name,
            config={**_SEGMENTS, **config},
        )

    def kill_master(self) -> None:
        """Kill the master."""
        self._servers["master"].kill()

    def end(self) -> None:
        """End both."""
        for server in self._servers.values():
            server.kill()


class OurBrokers:
    """Our pair."""

    name = "reads-mailboat"

    def __init__(self, root: Path, namesrv: str, start: MailboatFactory) -> None:
        """Keep the stores below `root`."""
        self._root, self._start = root, start
        self._port, self._slave_port = free_broker_port(), free_broker_port()
        self.address = f"127.0.0.1:{self._port}"
        self.slave_address = f"127.0.0.1:{self._slave_port}"
        self._config: dict[str, object] = {
            **_SEGMENTS,
            "brokerName": self.name,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": namesrv,
            "slaveReadEnable": "true",
            "inSyncReplicas": 1,
        }
        self.master_dir = root / "mailboat-master"
        self._brokers: dict[str, MailboatStandalone] = {}

    def start(self) -> None:
        """Start both."""
        ha = f"127.0.0.1:{self._port + 1}"
        slave = {**_SLAVE, "haMasterAddress": ha}
        for role, port, config in (
            ("master", self._port, {"haListenPort": self._port + 1}),
            ("slave", self._slave_port, slave),
        ):
            config = {**self._config, **config}
            self._brokers[role] = self._start(
                self._root / f"mailboat-{role}", broker_port=port, **config
            )
        self._wait_leads()

    def start_master(self) -> None:
        """Start the master."""
        self._brokers["master"].start()
        self._wait_leads()

    def _wait_leads(self) -> None:
        http = self._brokers["master"].ready.http
        wait_until(
            lambda: not ask_http(BrokerHttp(http), "GET", "/api/v1/replica")["refusal"],
            _SOON_S,
            "it leads",
        )

    def kill_master(self) -> None:
        """Kill the master."""
        self._brokers["master"].kill()

    def end(self) -> None:
        """End both."""
        for broker in self._brokers.values():
            broker.close()


@dataclass
class Seen:
    """What clients saw of a pair; messages by their keys."""

    before: set[str]
    at_slave: set[str]
    refused: str
    committed_at_slave: int
    route_while_away: set[int]
    after: set[str]
    again: set[str]
    """What came once more after the master was back."""


def _play(pair: Pair, client: JavaClient, namesrv: str) -> Seen:
    """Have the master killed and come back under consumers."""
    topic = f"{pair.name}-topic"
    pair.start()
    both = {0: pair.address, 1: pair.slave_address}
    wait_until(lambda: brokers_of(namesrv, pair.name) == both, _SOON_S, "both are registered")
    client.call("create_topic", topic=topic, queues=QUEUES)

    def send(begin: int, count: int) -> None:
        for number in range(begin, begin + count):
            body = base64.b64encode(b"m").decode()
            client.call("send", topic=topic, body=body, group="sender", keys=f"k-{number}")

    def shown() -> int:
        return sum(queue_end(pair.slave_address, topic, queue) for queue in range(QUEUES))

    def level(count: int, committed: int) -> None:
        wait_until(lambda: topic in topic_names(pair.slave_address), _LEVEL_S, "the topic is there")
        # Ours shows what its master has told it to be confirmed, twice a second.
        wait_until(lambda: shown() == count, _LEVEL_S, "all are shown")
        wait_until(lambda: _committed(pair.slave_address, topic) == committed, _LEVEL_S, "offsets")

    def consume(count: int) -> set[str]:
        reader = client.start("push", topic=topic, group=GROUP, **FIRST)
        keys = {event["keys"] for event in reader.wait_messages(count)}
        client.call("stop", handle=reader.number)
        return keys

    send(0, 40)
    before = consume(40)
    wait_until(lambda: _committed(pair.address, topic) == 40, _SOON_S, "committed")
    # A master that is killed forgets a group whose first commit is younger than five seconds.
    saved = pair.master_dir / "config" / "consumerOffset.json"
    wait_until(lambda: f"{topic}@{GROUP}" in _text(saved), _SOON_S, "it is on the disk")
    send(40, 20)
    level(60, 40)

    pair.kill_master()
    wait_until(lambda: 0 not in brokers_of(namesrv, pair.name), _SOON_S, "the master is gone")
    route = set(brokers_of(namesrv, pair.name))
    refused = ""
    try:
        send(1000, 1)
    except JavaClientError as error:
        refused = error.kind or ""
    at_slave = consume(20)
    wait_until(lambda: _committed(pair.slave_address, topic) == 60, _SOON_S, "committed there")
    committed = _committed(pair.slave_address, topic)

    pair.start_master()
    wait_until(lambda: brokers_of(namesrv, pair.name) == both, _SOON_S, "both again")
    wait_until(lambda: log_end(pair.slave_address) == log_end(pair.address), _LEVEL_S, "level")
    # Here the slave tells the master what it has not, there it takes what the master has.
    wait_until(
        lambda: (
            group_offsets(pair.address, topic, GROUP)
            == group_offsets(pair.slave_address, topic, GROUP)
        ),
        _LEVEL_S,
        "the offsets of one are those of the other",
    )
    send(60, 10)
    reader = client.start("push", topic=topic, group=GROUP, **FIRST)
    wanted = {f"k-{number}" for number in range(60, 70)}

    def came() -> set[str]:
        return {event["keys"] for event in reader.events("message")}

    wait_until(lambda: came() >= wanted, _SOON_S, "what was sent since")
    wait_until(lambda: _committed(pair.address, topic) == 70, _SOON_S, "all committed")
    again = came() - wanted
    client.call("stop", handle=reader.number)
    pair.end()
    return Seen(before, at_slave, refused, committed, route, wanted, again)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _committed(address: str, topic: str) -> int:
    return sum(group_offsets(address, topic, GROUP).values())


@pytest.mark.one_line_a_day
@pytest.mark.parametrize("line", CLIENT_LINES)
def test_consumers_while_the_master_is_away(
    line: str,
    java_namesrv: Callable[[str], str],
    java_broker: JavaBrokerFactory,
    mailboat_standalone: MailboatFactory,
    new_java_client: JavaClientFactory,
    tmp_path: Path,
) -> None:
    """They see the same of both pairs, but that RocketMQ's forgets what was committed meanwhile."""
    namesrv = java_namesrv(_SERVER)
    client = new_java_client(line, namesrv)
    ours = _play(OurBrokers(tmp_path, namesrv, mailboat_standalone), client, namesrv)
    theirs = _play(JavaBrokers(_SERVER, tmp_path, namesrv, java_broker), client, namesrv)
    assert theirs.again == {f"k-{number}" for number in range(40, 60)}
    assert ours.again == set()
    theirs.again = ours.again
    assert ours == theirs
    assert ours.at_slave == {f"k-{number}" for number in range(40, 60)}
    assert ours.refused
