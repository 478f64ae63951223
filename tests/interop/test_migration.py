"""From a running broker of RocketMQ to ours, as docs/replication.md tells, under traffic.

A real name server and master of RocketMQ, and stock clients: a producer that sends each message
until it is acknowledged, a consumer, delayed and half messages. The steps have the numbers of
"Moving from Java RocketMQ".
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from interop_wire import (
    ask,
    brokers_of,
    group_offsets,
    log_end,
    queue_end,
    records,
    wait_until,
)
from java_pair import FOLLOWS_S, LINES, NAME, TOPIC
from promises import promised

from mailboat.cli import main

if TYPE_CHECKING:
    from java_pair import JavaPair

pytestmark = [pytest.mark.interop, pytest.mark.one_line_a_day, pytest.mark.timeout(300)]

_UPDATE_CONFIG, _EPOCHS = 25, 1007
_GROUP = "readers"
# Two levels: one that is due before the switch, one that is due after it.
_LEVELS = "1s 45s"
_SWITCH_S = 60.0


class Traffic:
    """Stock clients at work."""

    def __init__(self, pair: JavaPair, folder: Path) -> None:
        """Begin to send and to consume."""
        self._client = pair.client
        self._sent, self._received = folder / "sent", folder / "received"
        where = {"topic": TOPIC, "group": _GROUP}
        self._reader = self._client.start("drain", file=self._received, **where)
        self._reader.wait_done()
        self._sender = self._client.start(
            "steady", topic=TOPIC, group="sender", file=self._sent, interval=5, insist="true"
        )
        self._sender.wait_done()

    def wait_sent(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        self._client.call("steady_await", handle=self._sender.number, count=count, timeout=60)

    def look(self) -> None:
        """Have the clients do what they do by themselves each 30 s: ask for routes."""
        self._client.call("steady_look", handle=self._sender.number)
        self._client.call("refresh", handle=self._reader.number)

    def wait_failed(self) -> None:
        """Wait until a send fails."""
        self._client.call("steady_await", handle=self._sender.number, failed="true", timeout=60)

    def stop_sending(self) -> dict[str, Any]:
        """Stop the producer; return how many sends were acknowledged, and how many failed."""
        [told] = self._client.call("steady_stop", handle=self._sender.number)
        return told

    def acknowledged(self) -> set[str]:
        """Return the keys of all messages that the producer knows to be stored."""
        return {line.split("\t")[0] for line in self._sent.read_text().splitlines()}

    def received(self) -> list[tuple[str, str, str]]:
        """Return what the consumer got: key, queue, queue offset."""
        lines = [line.split("\t") for line in self._received.read_text().splitlines()]
        with promised("a message comes as it was sent"):
            assert {line[4] for line in lines if line[0].startswith("s-")} <= {"intact"}
        return [(line[0], line[2], line[3]) for line in lines]

    def stop_reading(self) -> None:
        """Stop the consumer."""
        self._client.call("stop", handle=self._reader.number)


class Capture:
    """Runs commands of `mailboat replica` about one broker."""

    def __init__(self, http: str, capture: pytest.CaptureFixture[bytes]) -> None:
        """Ask the broker at an HTTP address."""
        self._http = http
        self._capture = capture

    def run(self, *words: str) -> list[str]:
        """Run a command, which must succeed; return the lines that it printed."""
        code = main(["replica", *words, "--http", self._http])
        captured = self._capture.readouterr()
        assert code == 0, captured.err.decode() + captured.out.decode()
        return captured.out.decode().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_a_running_broker_is_moved(
    line: str, java_pair: JavaPair, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Nothing acknowledged is lost, nothing comes twice, and clients go on by themselves."""
    pair = java_pair
    # Whoever asks for the outcome of half messages, it is not the Java broker.
    java = {"messageDelayLevel": _LEVELS, "transactionCheckInterval": 600_000}
    with pair.running(line, **java):
        traffic = Traffic(pair, tmp_path)
        traffic.wait_sent(300)
        pair.send(5, level=1, keys="early-{i}")

        # 2: it takes the history, 3: and is compared.
        slave = pair.start_slave(
            messageDelayLevel=_LEVELS,
            inSyncReplicas=1,
            transactionCheckInterval=1000,
            transactionTimeOut=1000,
        )
        commands = Capture(slave.ready.http, capsysbinary)
        wait_until(lambda: 1 in brokers_of(pair.namesrv, NAME), FOLLOWS_S, "both are registered")
        assert commands.run("follow")[-2].startswith("equal: ")
        traffic.wait_sent(200)
        pair.send(5, level=2, keys="late-{i}")
        half = pair.client.start(
            "transaction",
            topic=TOPIC,
            group="transactions",
            body="aGFsZg==",
            keys="half-{i}",
            count=3,
            local="UNKNOW",
            checks="COMMIT_MESSAGE",
        )
        half.wait_done()

        # 4: producers leave.
        assert ask(pair.address, _UPDATE_CONFIG, body=b"brokerPermission=4\n").code == 0
        traffic.look()
        traffic.wait_failed()

        # 5: nothing comes any more, and the replica is level.
        wait_until(lambda: commands.run("follow")[-1].startswith("equal: "), FOLLOWS_S, "level")
        pair.wait_equal()
        read = group_offsets(pair.address, TOPIC, _GROUP)

        # 6: the Java broker stops, 7: and what it wrote in its last moment is taken from its disk.
        pair.master.stop()
        theirs = pair.root / "master"
        commands.run("import", str(theirs))
        end = log_end(pair.slave_address)
        _check_ends(theirs, end)

        # 8: the replica is promoted, and clients go on.
        commands.run("promote", "--accept-loss")
        only = {0: pair.slave_address}
        wait_until(lambda: brokers_of(pair.namesrv, NAME) == only, FOLLOWS_S, "it is brokerId 0")
        # The consumer goes on committing, every few seconds.
        now = group_offsets(pair.slave_address, TOPIC, _GROUP)
        with promised("what groups have read is kept"):
            assert now.keys() == read.keys()
            for queue, queue_offset in now.items():
                assert read[queue] <= queue_offset <= queue_end(pair.slave_address, TOPIC, queue)
        traffic.look()
        traffic.wait_sent(300)
        told = traffic.stop_sending()
        assert told["sent"] >= 800

        wanted = traffic.acknowledged()
        wanted |= {f"{kind}-{i}" for kind in ("early", "late") for i in range(5)}
        wanted |= {f"half-{i}" for i in range(3)}
        wait_until(
            lambda: {key for key, _, _ in traffic.received()} >= wanted, _SWITCH_S, "all consumed"
        )
        received = traffic.received()
        counts = Counter(key for key, _, _ in received)
        with promised("each acknowledged message comes once"):
            assert {key: counts[key] for key in wanted} == dict.fromkeys(wanted, 1)
        assert counts.keys() == wanted
        assert {event["keys"] for event in half.events("check")} == {f"half-{i}" for i in range(3)}
        pair.client.call("transaction_stop", handle=half.number)
        traffic.stop_reading()

        # 9: it leads on after a restart.
        slave.terminate()
        slave.start()
        wait_until(lambda: brokers_of(pair.namesrv, NAME) == only, FOLLOWS_S, "it leads again")

        # The logs are one up to the switch.
        with promised("the logs are one up to the switch"):
            assert records(pair.root / "slave", end) == records(theirs, end)
        epochs = json.loads(ask(pair.slave_address, _EPOCHS).body)["epochList"]
        assert epochs[0]["startOffset"] == end


def _check_ends(store: Path, end: int) -> None:
    """Check that the log of a stopped broker ends at a physical offset."""
    last = sorted((store / "commitlog").iterdir())[-1]
    data = last.read_bytes()
    position = end - int(last.name)
    with promised("the log is all there"):
        assert 0 < position <= len(data)
        assert not data[position:].rstrip(b"\0")
