"""The stock Go client `rocketmq-client-go/v2` against mailboat.

The library has a header format, timers and habits of its own. Every expectation is RocketMQ's own
behaviour: the file passes against the real broker too (`MAILBOAT_TEST_INTEROP_TARGET=java-5.5.0`).
"""

from __future__ import annotations

import base64
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from interop_client import Event, GoClient, JavaCall, JavaClientError
from interop_jars import InteropUnavailableError, go_driver
from interop_plays import serving
from interop_scenarios import DELAY_S, bodies, body

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SEND_OK = 0
COMMIT, ROLLBACK, UNKNOWN = 1, 2, 3


@pytest.fixture(scope="module")
def go(
    interop_unavailable: Callable[[InteropUnavailableError], None],
    java_classpath: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GoClient]:
    """A process with Go clients, connected to mailboat or to the broker the environment names."""
    try:
        go_driver()
    except InteropUnavailableError as error:
        interop_unavailable(error)
    server = os.environ.get("MAILBOAT_TEST_INTEROP_TARGET", "mailboat").removeprefix("java-")
    if server != "mailboat":
        java_classpath("server", server)
    folder = tmp_path_factory.mktemp("go")
    with serving(server, folder) as namesrv:
        client = GoClient(namesrv, folder)
        yield client
        client.close()


def _send(client: GoClient, topic: str, text: str = "go", **params: Any) -> list[Event]:
    encoded = base64.b64encode(text.encode()).decode()
    exact = None if "count" in params else "true"
    return client.call("send", topic=topic, body=encoded, exact=exact, **params)


def _push(client: GoClient, topic: str, **params: Any) -> JavaCall:
    call = client.start("push", **{"topic": topic, "group": f"G-{topic}"} | params)
    call.wait_done()
    return call


def _transaction(client: GoClient, topic: str, text: str, **params: Any) -> JavaCall:
    encoded = base64.b64encode(text.encode()).decode()
    group = f"P-{topic}-{text}"
    call = client.start(
        "transaction", topic=topic, group=group, body=encoded, exact="true", **params
    )
    call.wait_done()
    return call


def _known_group(client: GoClient, topic: str) -> None:
    """Have the group's retry topic made: a first member would look for it only after 30 s."""
    client.call("stop", handle=_push(client, topic).number)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_sends_come_back_as_sent(go: GoClient, topic: str, mode: str) -> None:
    """A message is stored where its result says, with its body, keys, tag and properties."""
    sent = _send(
        go,
        topic,
        count=8,
        mode=mode,
        tags="red,green",
        keys="k{i} all",
        **{"property.colour": "a b=c;d", "property.umlaut": "gr\u00fc\u00df\u4f60"},
    )
    assert [event["status"] for event in sent] == [SEND_OK] * 8
    messages = _push(go, topic).wait_messages(8)
    places = {(m["queueId"], m["queueOffset"]): m for m in messages}
    assert {(event["queueId"], event["queueOffset"]) for event in sent} == set(places)
    for event in sent:
        message = places[event["queueId"], event["queueOffset"]]
        assert message["msgId"] == event["msgId"]
        assert message["offsetMsgId"] == event["offsetMsgId"]
    assert sorted((body(m), m["keys"], m["tags"]) for m in messages) == [
        (f"go#{i}", f"k{i} all", ("red", "green")[i % 2]) for i in range(8)
    ]
    assert {m["properties"]["colour"] for m in messages} == {"a b=c;d"}
    assert {m["properties"]["umlaut"] for m in messages} == {"gr\u00fc\u00df\u4f60"}


def test_one_way_sends_and_batches(go: GoClient, topic: str) -> None:
    """One-way sends, which the client sends like any request, and batches reach a consumer."""
    _send(go, topic, "first")
    _send(go, topic, "oneway", count=5, mode="oneway")
    (batch,) = _send(go, topic, "batch", count=4, mode="batch", keys="k{i}", tags="a,b")
    assert batch["status"] == SEND_OK
    messages = _push(go, topic).wait_messages(10)
    assert sorted(bodies(messages)) == sorted(
        ["first", *[f"oneway#{i}" for i in range(5)], *[f"batch#{i}" for i in range(4)]]
    )
    batched = sorted((m for m in messages if body(m).startswith("batch")), key=body)
    assert [(m["queueId"], m["queueOffset"] - batch["queueOffset"]) for m in batched] == [
        (batch["queueId"], i) for i in range(4)
    ]
    assert [(m["keys"], m["tags"]) for m in batched] == [(f"k{i}", "ab"[i % 2]) for i in range(4)]


def test_a_large_body_is_compressed_and_comes_back(go: GoClient, topic: str) -> None:
    """A body above the client's threshold of 4 KiB travels compressed and arrives as it was."""
    text = "again and " * 1000
    _send(go, topic, text)
    (message,) = _push(go, topic).wait_messages(1)
    assert body(message) == text


def test_delayed_sends(go: GoClient, topic: str) -> None:
    """Delayed messages come in the order in which they are due, and not early."""
    _send(go, topic, "now")
    consumer = _push(go, topic)
    for text, level in (("late", 2), ("soon", 1)):
        _send(go, topic, text, level=level)
    messages = consumer.wait_messages(3)
    assert bodies(messages) == ["now", "soon", "late"]
    waited_ms = [m["storeTimestamp"] - m["bornTimestamp"] for m in messages]
    assert waited_ms[1] >= 1000 * DELAY_S[1]
    assert waited_ms[2] >= 1000 * DELAY_S[2]


def test_orderly(go: GoClient, topic: str) -> None:
    """The messages of a sharding key share a queue and are consumed in order, failed ones again."""
    for key in ("alice", "bob", "carol"):
        _send(go, topic, key, count=5, keys=key + "{i}", shard=key)
    consumer = _push(go, topic, orderly="true", fail=2, failKeys="bob2,carol0")
    messages = consumer.wait_messages(19)
    seen: defaultdict[str, list[str]] = defaultdict(list)
    for message in messages:
        seen[message["keys"][:-1]].append(message["keys"])
    assert seen == {
        "alice": [f"alice{i}" for i in range(5)],
        "bob": ["bob0", "bob1", "bob2", "bob2", "bob2", "bob3", "bob4"],
        "carol": ["carol0", "carol0", "carol0", *[f"carol{i}" for i in range(1, 5)]],
    }
    queues = {(m["keys"][:-1], m["queueId"]) for m in messages}
    assert len(queues) == 3


def test_retry_and_dead_letter(go: GoClient, topic: str) -> None:
    """A failed message comes again, counted, and after the last attempt is a dead letter."""
    _send(go, topic, "first")
    _known_group(go, topic)
    consumer = _push(go, topic, fail=9, failKeys="bad", maxReconsume=1)
    _send(go, topic, "good", keys="good")
    _send(go, topic, "bad", keys="bad", tags="red")
    consumer.wait(lambda events: sum(e.get("keys") == "bad" for e in events) >= 2, 40)
    bad = [m for m in consumer.events("message") if m["keys"] == "bad"]
    assert [(m["reconsumeTimes"], m["topic"]) for m in bad] == [(0, topic), (1, topic)]
    assert bad[0]["msgId"] == bad[1]["msgId"]
    undertaker = _await_topic(go, f"%DLQ%G-{topic}")
    (dead,) = undertaker.wait_messages(1)
    assert (body(dead), dead["keys"], dead["tags"]) == ("bad", "bad", "red")
    assert dead["properties"]["RETRY_TOPIC"] == topic


def _await_topic(client: GoClient, topic: str) -> JavaCall:
    """Subscribe to a topic that is about to be made; the client refuses one without a route."""
    deadline_s = time.monotonic() + 40
    while True:
        try:
            return _push(client, topic, group="G-undertaker")
        except JavaClientError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def test_broadcasting(go: GoClient, topic: str) -> None:
    """Each broadcasting member gets every message."""
    _send(go, topic, "first", count=2)
    members = [_push(go, topic, model="BROADCASTING", instance=f"go-{i}") for i in range(2)]
    _send(go, topic, "second", count=4)
    wanted = [*[f"first#{i}" for i in range(2)], *[f"second#{i}" for i in range(4)]]
    for member in members:
        assert sorted(bodies(member.wait_messages(6))) == wanted


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ({"expression": "red || blue"}, {"k0", "k2", "k3", "k5"}),
        ({"sql": "a > 1 AND TAGS <> 'green'"}, {"k2", "k3", "k5"}),
        ({"sql": "missing IS NULL AND a BETWEEN 1 AND 2"}, {"k1", "k2"}),
    ],
    ids=["tags", "sql", "sql-null"],
)
def test_filters(go: GoClient, topic: str, selector: dict[str, str], wanted: set[str]) -> None:
    """Tags and SQL select; the client's pulls carry no filter, so its heartbeat must count."""
    _send(go, topic, count=6, keys="k{i}", tags="red,green,blue", **{"property.a": "{i}"})
    messages = _push(go, topic, **selector).wait_messages(len(wanted))
    assert {m["keys"] for m in messages} == wanted


def test_transactions(go: GoClient, topic: str) -> None:
    """Committed messages arrive, at once or after a check, and what is rolled back does not."""
    committed = _transaction(go, topic, "committed", local="COMMIT_MESSAGE")
    undone = _transaction(go, topic, "undone", local="ROLLBACK_MESSAGE")
    rejected = _transaction(go, topic, "rejected", checks="ROLLBACK_MESSAGE")
    checked = _transaction(go, topic, "checked", checks="UNKNOW,COMMIT_MESSAGE", keys="k")
    states = [call.events("sent")[0]["localState"] for call in (committed, undone, checked)]
    assert states == [COMMIT, ROLLBACK, UNKNOWN]
    rejected.wait(lambda events: any(e["event"] == "check" for e in events), 40)
    messages = _push(go, topic).wait_messages(2)
    assert bodies(messages) == ["committed", "checked"]
    checks = checked.events("check")
    assert [(body(e), e["keys"], e["number"]) for e in checks] == [
        ("checked", "k", 1),
        ("checked", "k", 2),
    ]
    sent = {call.events("sent")[0]["msgId"] for call in (committed, checked)}
    assert {m["msgId"] for m in messages} == sent


def test_request_and_reply(go: GoClient, topic: str) -> None:
    """A request gets the reply of the consumer that answers it."""
    # The library tells the broker of a new producer a second after its start, and only a producer
    # that the broker knows gets replies: this message takes longer.
    _send(go, topic, "first", group=f"P-{topic}", level=2)
    consumer = _push(go, topic, answer="true")
    consumer.wait_messages(1)
    (reply,) = go.call(
        "request",
        topic=topic,
        group=f"P-{topic}",
        body=base64.b64encode(b"question").decode(),
        exact="true",
    )
    assert body(reply) == "re:question"
    consumer.wait(lambda events: any(e["event"] == "replied" for e in events), 20)
    assert [event["status"] for event in consumer.events("replied")] == [SEND_OK]
