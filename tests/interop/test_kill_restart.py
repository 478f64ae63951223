"""A stock Java producer and push consumer while the broker is killed and started five times."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop_client import Event, JavaCall
from promises import promised

if TYPE_CHECKING:
    from conftest import JavaClientFactory, MailboatFactory
    from interop_process import MailboatStandalone

pytestmark = [pytest.mark.interop, pytest.mark.crash, pytest.mark.timeout(600)]

TOPIC = "kill-restart"
QUEUES = 8
MESSAGES = 100_000
KILLS = 5

Place = tuple[int, int]


@dataclass(frozen=True)
class Acknowledged:
    """What the producer was told about one key."""

    message_id: str
    place: Place
    unknown_before: int


@pytest.mark.one_line_a_day
@pytest.mark.parametrize("line", ["4.9.8", "5.5.0"])
def test_every_acknowledged_message_survives_five_kills(
    line: str,
    mailboat_standalone: MailboatFactory,
    new_java_client: JavaClientFactory,
    tmp_path: Path,
) -> None:
    """Of 100,000 sends over five kill -9 all arrive, twice only after an unknown answer."""
    server = mailboat_standalone(tmp_path / "data")
    client = new_java_client(line, server.ready.namesrv)
    client.call("create_topic", topic=TOPIC, queues=QUEUES)
    # After a restart the broker learns of the consumer with its next heartbeat; the usual 30 s
    # would only make the test longer.
    consumer = client.start(
        "drain", topic=TOPIC, group="drain", file=tmp_path / "in", batch=32, heartbeat=3000
    )
    consumer.wait_done()
    producer = client.start(
        "produce",
        topic=TOPIC,
        group="flood",
        count=MESSAGES,
        window=256,
        file=tmp_path / "out",
        timeout=240,
    )
    for kill in range(1, KILLS + 1):
        _wait_acknowledged(producer, MESSAGES * kill // (KILLS + 1), server)
        server.kill()
        server.start()
    produced = producer.wait_done(timeout_s=300)[-1]
    stored = {event["queueId"]: event["maxOffset"] for event in client.call("offsets", topic=TOPIC)}
    client.start(
        "await_places", handle=consumer.number, count=sum(stored.values()), timeout=120
    ).wait_done(timeout_s=130)
    client.call("stop", handle=consumer.number)

    acknowledged = _read_acknowledged(tmp_path / "out")
    assert produced["acknowledged"] == MESSAGES
    assert produced["unknown"] + produced["refused"] > 0, "no kill met a send"
    assert set(acknowledged) == {f"m-{i}" for i in range(MESSAGES)}
    _check(acknowledged, _read_received(tmp_path / "in"), stored)


def _wait_acknowledged(producer: JavaCall, count: int, server: MailboatStandalone) -> None:
    def reached(events: list[Event]) -> bool:
        return any(e["event"] == "progress" and e["acknowledged"] >= count for e in events)

    try:
        producer.wait(reached, timeout_s=60)
    except TimeoutError as error:
        raise AssertionError(f"the sends stand still: {error}\n{server.log_tail()}") from error


def _read_acknowledged(path: Path) -> dict[str, Acknowledged]:
    with path.open(newline="") as file:
        return {
            key: Acknowledged(message_id, (int(queue), int(offset)), int(unknown))
            for key, message_id, queue, offset, unknown in csv.reader(file, delimiter="\t")
        }


def _read_received(path: Path) -> dict[Place, tuple[str, str]]:
    """Return key and message id by place; the same place may come twice, but not changed."""
    received: dict[Place, tuple[str, str]] = {}
    with path.open(newline="") as file:
        for key, message_id, queue, offset, body in csv.reader(file, delimiter="\t"):
            with promised("a message comes as it was sent"):
                assert body == "intact", f"{key} has another body than was sent"
                place = int(queue), int(offset)
                assert received.setdefault(place, (key, message_id)) == (key, message_id), (
                    f"place {place} was delivered with two different messages"
                )
    return received


@promised("acknowledged messages are there once, where they were put")
def _check(
    acknowledged: dict[str, Acknowledged],
    received: dict[Place, tuple[str, str]],
    stored: dict[int, int],
) -> None:
    places = {(queue, offset) for queue, end in stored.items() for offset in range(end)}
    assert set(received) == places, "the queues have gaps or more than their offsets say"
    copies: defaultdict[str, int] = defaultdict(int)
    for key, _ in received.values():
        copies[key] += 1
    for key, sent in acknowledged.items():
        assert received[sent.place] == (key, sent.message_id), f"{key} is not where it was put"
        assert copies[key] <= 1 + sent.unknown_before, f"{key} was stored {copies[key]} times"
