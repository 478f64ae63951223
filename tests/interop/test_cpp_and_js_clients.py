"""The stock C++ and JavaScript clients against mailboat.

Both have bodies and headers of their own: the C++ client writes numbers for Java's constants and
texts for numbers, the JavaScript one numbers and null in headers. Every expectation is RocketMQ's
own behaviour: the file passes against the real broker too
(`MAILBOAT_TEST_INTEROP_TARGET=java-5.5.0`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from interop_client import CppClient, DrivenClient, Event, JavaCall, JsClient
from interop_jars import InteropUnavailableError
from interop_plays import serving
from interop_scenarios import DELAY_S, bodies, body

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TARGET = os.environ.get("MAILBOAT_TEST_INTEROP_TARGET", "mailboat").removeprefix("java-")
SEND_OK = 0
CLIENTS: dict[str, Callable[..., DrivenClient]] = {"cpp": CppClient, "js": JsClient}


@pytest.fixture(scope="module")
def namesrv(
    java_classpath: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The name server of mailboat, or of the broker that the environment names."""
    if TARGET != "mailboat":
        java_classpath("server", TARGET)
    with serving(TARGET, tmp_path_factory.mktemp("servers")) as address:
        yield address


@pytest.fixture(scope="module")
def start_client(
    namesrv: str,
    interop_unavailable: Callable[[InteropUnavailableError], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], DrivenClient]]:
    """Return a function that starts a process with clients of a kind."""
    clients: list[DrivenClient] = []

    def start(kind: str) -> DrivenClient:
        try:
            clients.append(CLIENTS[kind](namesrv, tmp_path_factory.mktemp(kind)))
        except InteropUnavailableError as error:
            interop_unavailable(error)
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def cpp(start_client: Callable[[str], DrivenClient]) -> DrivenClient:
    """A process with C++ clients."""
    return start_client("cpp")


@pytest.fixture(scope="module")
def js(start_client: Callable[[str], DrivenClient]) -> DrivenClient:
    """A process with JavaScript clients."""
    return start_client("js")


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> DrivenClient:
    """A process with clients of either kind."""
    started: DrivenClient = request.getfixturevalue(request.param)
    return started


@pytest.fixture
def made_topic(topic: str, namesrv: str) -> str:
    """A topic of four queues: the JavaScript client sends to none that is not there."""
    command = [sys.executable, "-m", "mailboat.cli", "topic", "create", topic]
    command += ["--namesrv", namesrv, "--read-queues", "4", "--write-queues", "4"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return topic


def _send(client: DrivenClient, topic: str, text: str, **params: Any) -> list[Event]:
    return client.call("send", topic=topic, body=text, **params)


def _push(client: DrivenClient, topic: str, **params: Any) -> JavaCall:
    call = client.start("push", **{"topic": topic, "group": f"G-{topic}"} | params)
    call.wait_done()
    return call


@pytest.mark.parametrize(
    ("kind", "mode"), [("cpp", "sync"), ("cpp", "async"), ("js", "sync")], ids="-".join
)
def test_sends_come_back_as_sent(
    request: pytest.FixtureRequest,
    made_topic: str,
    kind: str,
    mode: str,
) -> None:
    """A message is stored where its result says, with its body, key, tag and property."""
    client: DrivenClient = request.getfixturevalue(kind)
    sent = _send(
        client, made_topic, "gr\u00fc\u00df\u4f60", count=8, mode=mode, tags="red,green",
        keys="k{i}", **{"property.colour": "a b=c;{i}"},
    )  # fmt: skip
    assert [event["status"] for event in sent] == [SEND_OK] * 8
    messages = _push(client, made_topic).wait_messages(8)
    assert sorted((m["msgId"], m["queueOffset"]) for m in messages) == sorted(
        (event["msgId"], event["queueOffset"]) for event in sent
    )
    assert len({(m["queueId"], m["queueOffset"]) for m in messages}) == 8
    assert sorted((body(m), m["keys"], m["tags"], m["colour"]) for m in messages) == [
        (f"gr\u00fc\u00df\u4f60#{i}", f"k{i}", ("red", "green")[i % 2], f"a b=c;{i}")
        for i in range(8)
    ]


def test_a_large_body_is_compressed_and_comes_back(client: DrivenClient, made_topic: str) -> None:
    """A body above the clients' threshold of 4 KiB travels compressed and arrives as it was."""
    text = "again and " * 1000
    _send(client, made_topic, text)
    (message,) = _push(client, made_topic).wait_messages(1)
    assert body(message) == text


def test_delayed_sends(client: DrivenClient, made_topic: str) -> None:
    """Delayed messages come in the order in which they are due, and not early."""
    consumer = _push(client, made_topic)
    _send(client, made_topic, "now")
    for text, level in (("late", 2), ("soon", 1)):
        _send(client, made_topic, text, level=level)
    messages = consumer.wait_messages(3)
    waited_ms = {body(m): m["storeTimestamp"] - m["bornTimestamp"] for m in messages}
    assert waited_ms["soon"] >= 1000 * DELAY_S[1]
    assert waited_ms["late"] >= 1000 * DELAY_S[2]


def test_tags(client: DrivenClient, made_topic: str) -> None:
    """A consumer gets the messages with its tags."""
    _send(client, made_topic, "m", count=6, keys="k{i}", tags="red,green,blue")
    messages = _push(client, made_topic, expression="red || blue").wait_messages(4)
    assert {m["keys"] for m in messages} == {"k0", "k2", "k3", "k5"}


def test_sql_conditions(js: DrivenClient, made_topic: str) -> None:
    """The broker selects by a condition; the C++ client knows none."""
    _send(js, made_topic, "m", count=6, keys="k{i}", tags="red,green,blue", **{"property.a": "{i}"})
    messages = _push(js, made_topic, sql="a > 1 AND TAGS <> 'green'").wait_messages(3)
    assert {m["keys"] for m in messages} == {"k2", "k3", "k5"}


def test_a_failed_message_comes_again(client: DrivenClient, made_topic: str) -> None:
    """A message that its listener refuses is sent back, and comes again counted."""
    # The retry topic is made with the first member, and the C++ client looks for its route then.
    client.call("stop", handle=_push(client, made_topic).number)
    consumer = _push(client, made_topic, fail=1, failKeys="bad")
    _send(client, made_topic, "good", keys="good")
    _send(client, made_topic, "bad", keys="bad", tags="red")
    messages = consumer.wait_messages(3)
    bad = [m for m in messages if m["keys"] == "bad"]
    assert [(body(m), m["tags"], m["reconsumeTimes"]) for m in bad] == [
        ("bad", "red", 0),
        ("bad", "red", 1),
    ]


def test_a_group_goes_on_where_it_stopped(client: DrivenClient, made_topic: str) -> None:
    """A consumer that comes back does not see again what the group has consumed."""
    _send(client, made_topic, "first", count=4)
    consumer = _push(client, made_topic)
    consumer.wait_messages(4)
    client.call("stop", handle=consumer.number)
    _send(client, made_topic, "second", count=4)
    messages = _push(client, made_topic).wait_messages(4)
    assert sorted(bodies(messages)) == [f"second#{i}" for i in range(4)]


def test_one_way_sends(cpp: DrivenClient, made_topic: str) -> None:
    """Messages whose sender asks for no answer reach a consumer."""
    _send(cpp, made_topic, "oneway", count=5, mode="oneway")
    messages = _push(cpp, made_topic).wait_messages(5)
    assert sorted(bodies(messages)) == [f"oneway#{i}" for i in range(5)]


@pytest.mark.skipif(
    TARGET != "mailboat",
    reason="RocketMQ takes the C++ client's batch=1 for no batch and stores one long message",
)
def test_batches(cpp: DrivenClient, made_topic: str) -> None:
    """The messages of a batch arrive one by one, at places that follow one another."""
    (batch,) = _send(cpp, made_topic, "batch", count=4, mode="batch", keys="k{i}", tags="a,b")
    assert batch["status"] == SEND_OK
    messages = sorted(_push(cpp, made_topic).wait_messages(4), key=body)
    assert [(body(m), m["keys"], m["tags"]) for m in messages] == [
        (f"batch#{i}", f"k{i}", "ab"[i % 2]) for i in range(4)
    ]
    assert [m["queueOffset"] - batch["queueOffset"] for m in messages] == [0, 1, 2, 3]
    assert len({m["queueId"] for m in messages}) == 1


def test_orderly(cpp: DrivenClient, made_topic: str) -> None:
    """What is sent with one number shares a queue and is consumed in order."""
    for shard in (1, 2):
        _send(cpp, made_topic, f"s{shard}", count=10, mode="orderly", shard=shard)
    messages = _push(cpp, made_topic, orderly="true").wait_messages(20)
    for shard in (1, 2):
        of_shard = [m for m in messages if body(m).startswith(f"s{shard}")]
        assert bodies(of_shard) == [f"s{shard}#{i}" for i in range(10)]
        assert len({m["queueId"] for m in of_shard}) == 1


def test_broadcasting(cpp: DrivenClient, made_topic: str) -> None:
    """Each broadcasting member gets every message that is sent after it began."""
    members = [_push(cpp, made_topic, model="BROADCASTING") for _ in range(2)]
    for member in members:
        _send_until_it_reads(cpp, made_topic, member)
    _send(cpp, made_topic, "second", count=8)
    for member in members:
        member.wait(lambda events: sum(_is_second(event) for event in events) >= 8, 40)
        texts = [body(event) for event in member.events("message") if _is_second(event)]
        assert sorted(texts) == [f"second#{i}" for i in range(8)]


def _send_until_it_reads(client: DrivenClient, topic: str, consumer: JavaCall) -> None:
    """Send to every queue until a consumer has got a message of each."""
    for _ in range(100):
        _send(client, topic, "first", count=4)
        with contextlib.suppress(TimeoutError):
            consumer.wait(lambda events: len(_queues(events)) == 4, 0.5)
            return
    raise TimeoutError(f"the consumer does not read every queue of {topic}")


def _queues(events: list[Event]) -> set[int]:
    return {event["queueId"] for event in events if event["event"] == "message"}


def _is_second(event: Event) -> bool:
    return event["event"] == "message" and body(event).startswith("second")


def test_pulls(cpp: DrivenClient, made_topic: str) -> None:
    """A pull consumer reads every queue to its end."""
    _send(cpp, made_topic, "m", count=50)
    events = cpp.call("pull", topic=made_topic, group=f"G-{made_topic}")
    assert sorted(bodies(events)) == sorted(f"m#{i}" for i in range(50))


def test_a_reset_reaches_the_consumer(cpp: DrivenClient, made_topic: str, namesrv: str) -> None:
    """A running consumer is set back by a push, whose body is another one for C++."""
    _send(cpp, made_topic, "m", count=8)
    consumer = _push(cpp, made_topic)
    consumer.wait_messages(8)
    command = [sys.executable, "-m", "mailboat.cli", "offset", "reset", f"G-{made_topic}"]
    command += [made_topic, "--to", "first", "--namesrv", namesrv]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    messages = consumer.wait_messages(16)
    assert sorted(bodies(messages)) == sorted([f"m#{i}" for i in range(8)] * 2)
