"""Store folders change hands: what a Java broker wrote opens in mailboat, and the reverse.

Each side is asked over the wire by a stock client, so the comparison covers every field of every
message, the keys, the topics and the offsets of a group. The servers take turns on one port,
because message ids and records carry the address of the broker that stored them.
"""

from __future__ import annotations

import base64
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from interop_client import Event, JavaClient
from interop_servers import free_broker_port
from promises import promised

if TYPE_CHECKING:
    from conftest import JavaBrokerFactory, JavaClientFactory, MailboatFactory

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEGMENT_BYTES = 1 << 20
GROUP = "exchange-group"
COMMITTED = 25

SINGLES, BATCHES, LARGE, AUTO = "exchange-singles", "exchange-batches", "exchange-large", "exchange"
COUNTS = {SINGLES: 450, BATCHES: 60, LARGE: 8, AUTO: 10}
TAGS = "red,green,\u84dd\u8272"

# What the pulling client adds to a message; it is no part of the store.
CLIENT_PROPERTIES = {"MIN_OFFSET", "MAX_OFFSET"}


def _send(client: JavaClient, topic: str, body: bytes, **params: object) -> list[Event]:
    encoded = base64.b64encode(body).decode()
    return client.call("send", topic=topic, body=encoded, group="exchange", **params)


def write_corpus(client: JavaClient) -> None:
    """Send singles, batches and large messages over several segments, and commit offsets."""
    noise = random.Random(4)
    client.call("create_topic", topic=SINGLES, queues=3)
    client.call("create_topic", topic=BATCHES, queues=1)
    client.call("create_topic", topic=LARGE, queues=1)
    _send(
        client,
        SINGLES,
        noise.randbytes(3000),
        count=COUNTS[SINGLES],
        keys="order-{i} all",
        tags=TAGS,
        flag=3,
        **{"property.umlaut": "gr\u00fc\u00df"},
    )
    for batch in range(3):
        _send(client, BATCHES, b"batch %d" % batch, count=20, mode="batch", keys=f"b{batch}-{{i}}")
    for size in (5_000, 20_000, 200_000, 400_000):
        _send(client, LARGE, b"again and " * (size // 10), exact="true")
        _send(client, LARGE, noise.randbytes(size), exact="true")
    _send(client, AUTO, b"auto", count=COUNTS[AUTO], mode="async")
    # The group comes into being with its first consumer; a commit alone is refused by 5.x.
    client.call("lite", topic=SINGLES, group=GROUP, count=1, uncommitted="true")
    client.call("committed", topic=SINGLES, group=GROUP, commit=COMMITTED)


def read_corpus(client: JavaClient) -> dict[str, list[Event]]:
    """Pull every message of every topic, in the order of the queues."""
    for topic, count in COUNTS.items():
        client.call("await_stored", topic=topic, count=count, timeout=30)
    return {topic: _pull_all(client, topic) for topic in COUNTS}


def _pull_all(client: JavaClient, topic: str, expression: str = "*") -> list[Event]:
    messages = client.call("pull", topic=topic, all="true", expression=expression)
    for message in messages:
        del message["id"]
        properties = message["properties"]
        message["properties"] = {
            name: value for name, value in properties.items() if name not in CLIENT_PROPERTIES
        }
    return messages


def check_opened(client: JavaClient, written: dict[str, list[Event]]) -> None:
    """Check that a server over the folder serves all that the other one wrote, and goes on."""
    for topic, messages in written.items():
        assert len(messages) == COUNTS[topic]
        with promised("the other server serves all that was written"):
            assert _pull_all(client, topic) == messages
    singles = written[SINGLES]
    # The broker filters by the hashes of the tags that the other one wrote into the queues.
    blue = [message for message in singles if message["tags"] == "\u84dd\u8272"]
    assert len(blue) == COUNTS[SINGLES] // 3
    with promised("the other server serves all that was written"):
        assert _pull_all(client, SINGLES, expression="\u84dd\u8272") == blue
    for message in (singles[0], singles[-1], *written[LARGE][:1], *written[BATCHES][:1]):
        _check_found(client, message)
    assert len(_messages(client.call("query_key", topic=SINGLES, key="all", max=64))) > 1
    committed = client.call("committed", topic=SINGLES, group=GROUP)
    with promised("what groups have read is kept"):
        assert [event["committed"] for event in committed] == [COMMITTED] * 3
    (route,) = client.call("route", topic=SINGLES)
    assert (route["readQueueNums"], route["writeQueueNums"], route["perm"]) == (3, 3, 6)

    ends = Counter(message["queueId"] for message in singles)
    sent = _send(client, SINGLES, b"later", count=6)
    with promised("no queue offset is given out again"):
        assert sorted((e["queueId"], e["queueOffset"]) for e in sent) == sorted(
            (queue, end + step) for queue, end in ends.items() for step in (0, 1)
        )
    expected = Counter(
        message["bodySha256"] for message in singles if message["queueOffset"] >= COMMITTED
    ) + Counter(hashlib.sha256(b"later#%d" % i).hexdigest() for i in range(6))
    consumer = client.start("push", topic=SINGLES, group=GROUP)
    received = consumer.wait_messages(expected.total())
    client.call("stop", handle=consumer.number)
    with promised("each message comes once, unchanged"):
        assert Counter(message["bodySha256"] for message in received) == expected


def _check_found(client: JavaClient, message: Event) -> None:
    topic = message["topic"]
    by_id = client.call("view", topic=topic, msgId=message["offsetMsgId"])
    by_unique = client.call("query_unique", topic=topic, msgId=message["msgId"])
    found = [*by_id, *by_unique]
    if message["keys"] is not None:
        key = message["keys"].split(" ")[0]
        found += _messages(client.call("query_key", topic=topic, key=key))
    for other in found:
        place = other["queueId"], other["queueOffset"], other["bodySha256"]
        with promised("a look-up finds the message, unchanged"):
            assert place == (message["queueId"], message["queueOffset"], message["bodySha256"])


def _messages(events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "message"]


def log_digest(store_dir: Path, written: dict[str, list[Event]]) -> str:
    """Return a digest over the log up to the end of the last message, after a clean stop."""
    assert not (store_dir / "abort").exists(), "the server has not stopped cleanly"
    segments = sorted((store_dir / "commitlog").iterdir())
    assert len(segments) >= 3
    assert {segment.stat().st_size for segment in segments} == {SEGMENT_BYTES}
    end = max(
        message["commitLogOffset"] + message["storeSize"]
        for messages in written.values()
        for message in messages
    )
    return hashlib.sha256(b"".join(s.read_bytes() for s in segments)[:end]).hexdigest()


@pytest.mark.parametrize("line", ["4.9.7", "5.5.0"])
def test_mailboat_opens_what_a_java_broker_wrote(
    line: str,
    java_namesrv: Callable[[str], str],
    java_broker: JavaBrokerFactory,
    mailboat_standalone: MailboatFactory,
    new_java_client: JavaClientFactory,
    tmp_path: Path,
) -> None:
    """After a clean stop of Java every message, key, topic and group offset is there."""
    store_dir, port = tmp_path / "store", free_broker_port()
    settings: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
    namesrv = java_namesrv(line)
    broker = java_broker(line, store_dir, namesrv, port=port, config=settings)
    client_line = {"4.9.7": "4.9.8"}.get(line, line)
    client = new_java_client(client_line, namesrv)
    write_corpus(client)
    written = read_corpus(client)
    client.close()
    broker.stop()
    digest = log_digest(store_dir, written)

    server = mailboat_standalone(store_dir, broker_port=port, **settings)
    client = new_java_client(client_line, server.ready.namesrv)
    check_opened(client, written)
    client.close()
    server.terminate()
    with promised("the other server changes nothing"):
        assert log_digest(store_dir, written) == digest


def test_a_java_broker_opens_what_mailboat_wrote(
    java_namesrv: Callable[[str], str],
    java_broker: JavaBrokerFactory,
    mailboat_standalone: MailboatFactory,
    new_java_client: JavaClientFactory,
    tmp_path: Path,
) -> None:
    """After a clean stop of mailboat a Java broker serves every message, key and offset."""
    line = "5.5.0"
    store_dir, port = tmp_path / "store", free_broker_port()
    settings: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
    server = mailboat_standalone(store_dir, broker_port=port, **settings)
    client = new_java_client(line, server.ready.namesrv)
    write_corpus(client)
    written = read_corpus(client)
    client.close()
    server.terminate()
    digest = log_digest(store_dir, written)

    namesrv = java_namesrv(line)
    broker = java_broker(line, store_dir, namesrv, port=port, config=settings)
    client = new_java_client(line, namesrv)
    check_opened(client, written)
    client.close()
    broker.stop()
    with promised("the other server changes nothing"):
        assert log_digest(store_dir, written) == digest
