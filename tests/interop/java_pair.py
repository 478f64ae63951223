"""A real master of RocketMQ, a slave of ours below it, and a Java client of both."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from interop_client import Event, JavaClient
from interop_process import MailboatStandalone
from interop_servers import JavaServer, free_broker_port
from interop_wire import log_end, queue_records, records, wait_queued, wait_until
from promises import promised

if TYPE_CHECKING:
    from conftest import JavaBrokerFactory, JavaClientFactory, MailboatFactory

SEGMENT_BYTES = 1 << 20
TOPIC, QUEUES = "followed", 3
NAME = "broker-a"
LINES = ["4.9.7", "5.5.0"]
FOLLOWS_S = 30.0
# The client of 4.9.7 was not published with what the tests need.
_CLIENT_OF = {"4.9.7": "4.9.8"}


class JavaPair:
    """A Java master and a slave of ours, not started at first."""

    client: JavaClient
    master: JavaServer
    namesrv: str

    def __init__(
        self,
        root: Path,
        start_namesrv: Callable[[str], str],
        start_master: JavaBrokerFactory,
        start_slave: MailboatFactory,
        start_client: JavaClientFactory,
    ) -> None:
        """Keep the stores below `root`."""
        self.root = root
        self._start_namesrv = start_namesrv
        self._start_master = start_master
        self._start_slave = start_slave
        self._start_client = start_client
        self._port, self._slave_port = free_broker_port(), free_broker_port()
        self.address = f"127.0.0.1:{self._port}"
        self.slave_address = f"127.0.0.1:{self._slave_port}"
        self.slave: MailboatStandalone | None = None
        self._line = ""

    @contextmanager
    def running(self, line: str, **config: object) -> Iterator[None]:
        """Run a name server, the master and a client of a line, with a topic; `config` is the
        master's. In the end all of them, and a slave that was started, have to end in order.
        """
        self._line = line
        self.namesrv = self._start_namesrv(line)
        self.start_master(**config)
        self.client = self.new_client()
        self.client.call("create_topic", topic=TOPIC, queues=QUEUES)
        yield
        self.client.close()
        if self.slave is not None:
            self.slave.terminate()
        if self.master.is_running:
            self.master.stop()

    def new_client(self) -> JavaClient:
        """Start one more client."""
        return self._start_client(_CLIENT_OF.get(self._line, self._line), self.namesrv)

    def start_master(self, store: str = "master", **config: object) -> None:
        """Start the master over a store."""
        self.master = self._start_master(
            self._line,
            self.root / store,
            self.namesrv,
            port=self._port,
            name=NAME,
            config={"mappedFileSizeCommitLog": SEGMENT_BYTES, **config},
        )

    def start_slave(self, **config: object) -> MailboatStandalone:
        """Start the slave."""
        slave: dict[str, object] = {
            "brokerName": NAME,
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.namesrv,
            "slaveReadEnable": "true",
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
        }
        self.slave = self._start_slave(
            self.root / "slave", broker_port=self._slave_port, **(slave | config)
        )
        return self.slave

    def send(self, count: int, body: bytes = b"m" * 3000, **params: object) -> list[Event]:
        """Send messages to the topic and return what became of them."""
        text = base64.b64encode(body).decode()
        fields = {"topic": TOPIC, "group": "sender", **params}
        return self.client.call("send", body=text, count=count, **fields)

    def wait_equal(self) -> int:
        """Wait until the slave has all that the master has; return where their logs end."""
        wait_until(lambda: log_end(self.address) > 0, FOLLOWS_S, "the master says where it ends")
        end = log_end(self.address)
        wait_until(
            lambda: log_end(self.slave_address) >= end, FOLLOWS_S, f"the slave has it up to {end}"
        )
        assert log_end(self.slave_address) == end
        with promised("a slave has its master's log"):
            assert records(self.root / "slave", end) == records(self.root / "master", end)
        return end

    def check_queues(self, count: int) -> None:
        """Check that the slave gives every message that the master gives, byte by byte."""
        wait_queued((self.address, self.slave_address), TOPIC, QUEUES, count)
        theirs = [queue_records(self.address, TOPIC, queue) for queue in range(QUEUES)]
        ours = [queue_records(self.slave_address, TOPIC, queue) for queue in range(QUEUES)]
        with promised("a slave serves nothing but what its master serves"):
            for one, other in zip(ours, theirs, strict=True):
                assert other.startswith(one)
        assert ours == theirs
        assert sum(found.count(b"UNIQ_KEY") for found in theirs) == count
