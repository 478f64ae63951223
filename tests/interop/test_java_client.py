"""Stock Java clients of both release lines against mailboat: what they send is what they get.

Every expectation is RocketMQ's own behaviour: the whole file passes against the real broker too
(`MAILBOAT_TEST_INTEROP_TARGET=java-5.5.0`).
"""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from interop_client import Event, JavaCall, JavaClient, JavaClientError
from real_time import at_most_s

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# The bits of the system flag that say that a body was compressed, and how. The 5.x client clears
# the first one when it decompresses.
COMPRESSION_BITS = 0x1 | 0x700

PROPERTIES: dict[str, Any] = {
    "property.colour": "a b=c;d",
    "property.umlaut": "gr\u00fc\u00df\u4f60",
}


def _send(client: JavaClient, topic: str, body: bytes = b"body", **params: Any) -> list[Event]:
    encoded = base64.b64encode(body).decode()
    return client.call("send", topic=topic, body=encoded, group="producer", **params)


def _pull_all(client: JavaClient, topic: str, **params: object) -> list[Event]:
    events = client.call("pull", topic=topic, all="true", **params)
    return [event for event in events if event["event"] == "message"]


def _place(event: Event) -> tuple[int, int]:
    return event["queueId"], event["queueOffset"]


def _by_place(events: list[Event]) -> dict[tuple[int, int], Event]:
    places = {_place(event): event for event in events}
    assert len(places) == len(events), "two messages at one place"
    return places


def _digests(body: bytes, count: int) -> Counter[str]:
    bodies = (body + f"#{i}".encode() for i in range(count))
    return Counter(hashlib.sha256(each).hexdigest() for each in bodies)


def _received(events: list[Event]) -> Counter[str]:
    return Counter(event["bodySha256"] for event in events)


def _push(client: JavaClient, topic: str, **params: object) -> JavaCall:
    call = client.start("push", topic=topic, **params)
    call.wait_done()
    return call


def _await_queues(client: JavaClient, consumer: JavaCall, topic: str, count: int) -> None:
    client.call("await_queues", topic=topic, handle=consumer.number, count=count)


@pytest.mark.quick
def test_sync_sends_come_back_as_sent(java_client: JavaClient, target: Any, topic: str) -> None:
    """A sync send is stored where its result says, with its body, keys, tag and properties."""
    sent = _send(
        java_client,
        topic,
        count=10,
        tags="red,green",
        keys="order-{i} invoice-{i}",
        flag=7,
        **PROPERTIES,
    )
    assert [event["status"] for event in sent] == ["SEND_OK"] * 10
    assert {event["regionId"] for event in sent} == {"DefaultRegion"}
    stored = _by_place(_pull_all(java_client, topic))
    assert len(stored) == 10
    for i, result in enumerate(sent):
        message = stored[_place(result)]
        assert base64.b64decode(message["body"]) == b"body#%d" % i
        assert message["msgId"] == result["msgId"]
        assert message["offsetMsgId"] == result["offsetMsgId"]
        assert message["keys"] == f"order-{i} invoice-{i}"
        assert message["tags"] == ("red", "green")[i % 2]
        assert message["flag"] == 7
        assert message["properties"]["colour"] == "a b=c;d"
        assert message["properties"]["umlaut"] == "gr\u00fc\u00df\u4f60"
        assert message["properties"]["CLUSTER"] == "DefaultCluster"
        assert message["storeHost"] == target.broker
        assert message["bornHost"].startswith("127.0.0.1:")
        assert message["reconsumeTimes"] == 0
        assert message["storeTimestamp"] >= message["bornTimestamp"]


def test_sends_go_round_the_queues_of_an_auto_created_topic(
    java_client: JavaClient, topic: str
) -> None:
    """A topic made by its first send has the producer's four queues, readable and writable."""
    sent = _send(java_client, topic, count=8)
    assert Counter(event["queueId"] for event in sent) == {0: 2, 1: 2, 2: 2, 3: 2}
    (route,) = java_client.call("route", topic=topic)
    assert route["readQueueNums"] == 4
    assert route["writeQueueNums"] == 4
    assert route["perm"] == 6
    (topics,) = java_client.call("topics")
    assert topic in topics["names"]


def test_async_sends_are_all_acknowledged(java_client: JavaClient, topic: str) -> None:
    """Many sends in flight on one connection are each answered with their own place."""
    _send(java_client, topic, body=b"first")
    sent = _send(java_client, topic, body=b"async", count=200, mode="async", keys="k{i}")
    assert {event["status"] for event in sent} == {"SEND_OK"}
    stored = _by_place(_pull_all(java_client, topic))
    assert {stored[_place(event)]["msgId"] == event["msgId"] for event in sent} == {True}
    assert len(stored) == 201
    assert _digests(b"async", 200) <= _received(list(stored.values()))


def test_one_way_sends_are_stored(java_client: JavaClient, topic: str) -> None:
    """One-way sends get no answer and still reach a consumer."""
    _send(java_client, topic, body=b"first")
    consumer = _push(java_client, topic, group=f"G-{topic}")
    _send(java_client, topic, body=b"oneway", count=20, mode="oneway")
    messages = consumer.wait_messages(21)
    assert _digests(b"oneway", 20) <= _received(messages)
    java_client.call("stop", handle=consumer.number)


def test_batches_lie_side_by_side(java_client: JavaClient, topic: str) -> None:
    """The messages of a batch get consecutive offsets of one queue and keep their own ids."""
    java_client.call("create_topic", topic=topic, queues=2)
    (result,) = _send(
        java_client, topic, body=b"batch", count=5, mode="batch", keys="k{i}", tags="a,b", queue=1
    )
    assert result["status"] == "SEND_OK"
    assert (result["queueId"], result["queueOffset"]) == (1, 0)
    messages = _pull_all(java_client, topic)
    assert [_place(message) for message in messages] == [(1, i) for i in range(5)]
    assert [message["keys"] for message in messages] == [f"k{i}" for i in range(5)]
    assert [message["tags"] for message in messages] == ["a", "b", "a", "b", "a"]
    assert _received(messages) == _digests(b"batch", 5)
    assert ",".join(message["msgId"] for message in messages) == result["msgId"]
    assert ",".join(message["offsetMsgId"] for message in messages) == result["offsetMsgId"]


def test_a_chosen_queue_is_used(java_client: JavaClient, topic: str) -> None:
    """A message for a chosen queue, directly or by a selector, lands in that queue in order."""
    java_client.call("create_topic", topic=topic, queues=3)
    direct = _send(java_client, topic, count=3, queue=2)
    selected = _send(java_client, topic, count=3, shard=4)
    assert [_place(event) for event in direct] == [(2, 0), (2, 1), (2, 2)]
    assert [_place(event) for event in selected] == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.quick
def test_push_consumer_gets_old_and_new_messages(java_client: JavaClient, topic: str) -> None:
    """A push consumer gets what was there, is woken by what comes, and its offsets are kept."""
    group = f"G-{topic}"
    _send(java_client, topic, body=b"old", count=10)
    consumer = _push(java_client, topic, group=group)
    consumer.wait_messages(10)
    _await_queues(java_client, consumer, topic, 4)
    begin = time.monotonic()
    _send(java_client, topic, body=b"new", count=10)
    messages = consumer.wait_messages(20)
    # A pull that waits is woken at once; without that it would answer after 15 s.
    assert time.monotonic() - begin < at_most_s(5, 14)
    assert _received(messages) == _digests(b"old", 10) + _digests(b"new", 10)
    java_client.call("stop", handle=consumer.number)

    offsets = java_client.call("offsets", topic=topic)
    committed = java_client.call("committed", topic=topic, group=group)
    assert {e["queueId"]: e["committed"] for e in committed} == {
        e["queueId"]: e["maxOffset"] for e in offsets
    }
    second = _push(java_client, topic, group=group)
    _send(java_client, topic, body=b"later", count=4)
    assert _received(second.wait_messages(4)) == _digests(b"later", 4)
    java_client.call("stop", handle=second.number)


def test_consume_stats_show_the_lag(java_client: JavaClient, topic: str) -> None:
    """The admin client sees for each queue the broker's offset and the group's."""
    group = f"G-{topic}"
    _send(java_client, topic, count=4)
    consumer = _push(java_client, topic, group=group)
    consumer.wait_messages(4)
    java_client.call("stop", handle=consumer.number)
    _send(java_client, topic, count=8)
    stats = java_client.call("consume_stats", topic=topic, group=group)
    assert sorted(event["queueId"] for event in stats) == [0, 1, 2, 3]
    assert sum(event["consumerOffset"] for event in stats) == 4
    assert sum(event["brokerOffset"] for event in stats) == 12


def test_clustering_members_share_the_queues(java_client: JavaClient, topic: str) -> None:
    """Two members of a group take half of the queues each and get each message once."""
    group = f"G-{topic}"
    java_client.call("create_topic", topic=topic, queues=4)
    first = _push(java_client, topic, group=group)
    _await_queues(java_client, first, topic, 4)
    second = _push(java_client, topic, group=group)
    # The broker tells the first member of the second; its own timer would take 20 s.
    _await_queues(java_client, first, topic, 2)
    _await_queues(java_client, second, topic, 2)
    _send(java_client, topic, count=40)
    first.wait_messages(20)
    second.wait_messages(20)
    assert _received(first.events("message")) + _received(second.events("message")) == _digests(
        b"body", 40
    )
    java_client.call("stop", handle=first.number)
    _await_queues(java_client, second, topic, 4)
    java_client.call("stop", handle=second.number)


def test_broadcasting_members_each_get_everything(java_client: JavaClient, topic: str) -> None:
    """Every member of a broadcasting group gets every message."""
    _send(java_client, topic, body=b"first")
    members = [
        _push(java_client, topic, group=f"G-{topic}", model="BROADCASTING", instance=f"b{i}")
        for i in range(2)
    ]
    for member in members:
        _await_queues(java_client, member, topic, 4)
    _send(java_client, topic, body=b"all", count=12)
    for member in members:
        messages = member.wait_messages(13)
        assert _received(messages) == _digests(b"first", 1) + _digests(b"all", 12)
        java_client.call("stop", handle=member.number)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("red", {"red"}),
        ("red || \u84dd\u8272", {"red", "\u84dd\u8272"}),
        # "Aa" and "BB" have the same Java hash, so the broker alone cannot tell them apart.
        ("Aa", {"Aa"}),
        ("*", {"red", "green", "\u84dd\u8272", "Aa", "BB"}),
    ],
    ids=["one", "non-ascii", "same-hash", "all"],
)
def test_tag_subscriptions(
    java_client: JavaClient, topic: str, expression: str, wanted: set[str]
) -> None:
    """A subscription to tags, non-ASCII ones too, gets the messages of these tags only."""
    tags = ["red", "green", "\u84dd\u8272", "Aa", "BB"]
    sent = _send(java_client, topic, count=20, tags=",".join(tags))
    expected = {event["msgId"] for i, event in enumerate(sent) if tags[i % 5] in wanted}
    pulled = _pull_all(java_client, topic, expression=expression)
    assert {message["msgId"] for message in pulled} == expected
    assert {message["tags"] for message in pulled} == wanted
    consumer = _push(java_client, topic, group=f"G-{topic}", expression=expression)
    messages = consumer.wait_messages(len(expected))
    assert {message["msgId"] for message in messages} == expected
    java_client.call("stop", handle=consumer.number)


def test_pull_statuses_and_next_offsets(java_client: JavaClient, topic: str) -> None:
    """A pull answers found, no new, no match and illegal offset with RocketMQ's next offset."""

    def pull(**params: object) -> tuple[str, int, int, int]:
        event = java_client.call("pull", topic=topic, queue=0, **params)[0]
        return (
            event["status"],
            event["nextBeginOffset"],
            event["minOffset"],
            event["maxOffset"],
        )

    java_client.call("create_topic", topic=topic, queues=1)
    assert pull(queueOffset=0) == ("NO_NEW_MSG", 0, 0, 0)
    _send(java_client, topic, count=10, queue=0, tags="red")
    assert pull(queueOffset=0) == ("FOUND", 10, 0, 10)
    assert pull(queueOffset=3, max=4) == ("FOUND", 7, 0, 10)
    assert pull(queueOffset=10) == ("NO_NEW_MSG", 10, 0, 10)
    assert pull(queueOffset=50) == ("OFFSET_ILLEGAL", 10, 0, 10)
    assert pull(queueOffset=0, expression="green") == ("NO_MATCHED_MSG", 10, 0, 10)


def test_lite_pull_by_subscription_continues_where_it_committed(
    java_client: JavaClient, topic: str
) -> None:
    """A lite pull consumer gets everything once; its successor starts at the commit."""
    group = f"G-{topic}"
    java_client.call("create_topic", topic=topic, queues=4)
    _send(java_client, topic, body=b"old", count=50)
    messages = java_client.call("lite", topic=topic, group=group, count=50)
    assert _received(messages) == _digests(b"old", 50)
    _send(java_client, topic, body=b"new", count=6)
    messages = java_client.call("lite", topic=topic, group=group, count=6)
    assert _received(messages) == _digests(b"new", 6)


def test_lite_pull_by_assignment_starts_where_it_seeks(java_client: JavaClient, topic: str) -> None:
    """A lite pull consumer that assigns queues and seeks gets the messages from there."""
    java_client.call("create_topic", topic=topic, queues=2)
    for queue in (0, 1):
        _send(java_client, topic, count=10, queue=queue)
    messages = java_client.call("lite", topic=topic, group=f"G-{topic}", count=12, seek=4)
    assert sorted(_place(message) for message in messages) == [
        (queue, offset) for queue in (0, 1) for offset in range(4, 10)
    ]


def test_messages_are_found_by_id_and_keys(java_client: JavaClient, topic: str) -> None:
    """A message is found by its offset id, its unique id and each of its keys."""
    java_client.call("create_topic", topic=topic, queues=4)
    sent = _send(java_client, topic, count=6, keys="order-{i} all")
    for i, result in enumerate(sent):
        (by_id,) = java_client.call("view", topic=topic, msgId=result["offsetMsgId"])
        (by_unique,) = java_client.call("query_unique", topic=topic, msgId=result["msgId"])
        by_key = java_client.call("query_key", topic=topic, key=f"order-{i}")[1:]
        for message in (by_id, by_unique, *by_key):
            assert message["topic"] == topic
            assert _place(message) == _place(result)
            assert base64.b64decode(message["body"]) == b"body#%d" % i
        assert len(by_key) == 1
    index, *found = java_client.call("query_key", topic=topic, key="all")
    assert {message["msgId"] for message in found} == {event["msgId"] for event in sent}
    assert index["lastUpdateTimestamp"] >= max(m["storeTimestamp"] for m in found)


def test_an_unknown_key_is_not_found(java_client: JavaClient, topic: str) -> None:
    """A query for a key that no message has is answered with NO_MESSAGE, 208."""
    java_client.call("create_topic", topic=topic, queues=4)
    _send(java_client, topic, keys="present")
    with pytest.raises(JavaClientError) as caught:
        java_client.call("query_key", topic=topic, key="absent")
    assert caught.value.code == 208


def test_offsets_by_end_and_by_time(java_client: JavaClient, topic: str) -> None:
    """The smallest, the largest and the offset at a time are those of the stored messages."""
    java_client.call("create_topic", topic=topic, queues=1)
    _send(java_client, topic, count=5, queue=0)
    messages = _pull_all(java_client, topic)
    stored = [message["storeTimestamp"] for message in messages]

    def at(timestamp: int) -> Event:
        (event,) = java_client.call("offsets", topic=topic, timestamp=timestamp)
        return event

    first = at(0)
    assert (first["minOffset"], first["maxOffset"], first["searchOffset"]) == (0, 5, 0)
    assert first["earliestStoreTime"] == stored[0]
    for timestamp in stored:
        assert at(timestamp)["searchOffset"] == stored.index(timestamp)
    # Release line 4.9 answers a later time with the last message, 5.x with the end.
    assert at(stored[-1] + 60_000)["searchOffset"] in (4, 5)


@pytest.mark.parametrize("kind", ["text", "noise"])
def test_large_bodies_are_stored_compressed(java_client: JavaClient, topic: str, kind: str) -> None:
    """A body of more than 4 KiB travels and is stored compressed and arrives as it was."""
    body = b"again and " * 2000 if kind == "text" else random.Random(1).randbytes(20_000)
    (result,) = _send(java_client, topic, body=body, exact="true")
    consumer = _push(java_client, topic, group=f"G-{topic}")
    (message,) = consumer.wait_messages(1)
    java_client.call("stop", handle=consumer.number)
    assert message["bodySha256"] == hashlib.sha256(body).hexdigest()
    assert message["bodySize"] == len(body)
    assert message["sysFlag"] & COMPRESSION_BITS
    assert message["msgId"] == result["msgId"]
    if kind == "text":
        assert message["storeSize"] < 1000


def test_bodies_up_to_the_limit_pass_and_bigger_ones_are_refused(
    java_client: JavaClient, topic: str, tmp_path: Path
) -> None:
    """Noise just below 4 MiB comes back; above it the answer is MESSAGE_ILLEGAL, 13."""
    body = random.Random(2).randbytes(4 * 1024 * 1024 - 4096)
    below, above = tmp_path / "below", tmp_path / "above"
    below.write_bytes(body)
    above.write_bytes(body + body[:8192])
    _send(java_client, topic, bodyFile=below, exact="true")
    (message,) = _pull_all(java_client, topic)
    assert message["bodySha256"] == hashlib.sha256(body).hexdigest()
    with pytest.raises(JavaClientError) as caught:
        _send(java_client, topic, bodyFile=above, exact="true")
    assert caught.value.code == 13
    assert len(_pull_all(java_client, topic)) == 1
