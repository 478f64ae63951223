"""All the ways that requests take into a guarded broker: none leads around the guard."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from guarded import (
    SignedClient,
    Users,
    Wire,
    client_of,
    everything,
    guarded_broker,
    json_frame,
    known_as,
    pull_fields,
    send_fields,
    signed_frame,
    until,
    usual_users,
    wire_to,
)
from loop_lag import LoopLag
from real_time import at_most_s

from mailboat import core
from mailboat.broker.controller import BrokerController
from mailboat.broker.processors.send_rounds import SendRounds
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.frame import SERIALIZE_BINARY
from mailboat.security.rules import NO_RULES
from mailboat.security.signing import sign

Fields = dict[str, ExtValue]
NO_TOPIC: Fields = {}
QUEUE: Fields = {"topic": "T", "queueId": 0}
OTHER_TOPIC: Fields = {"topic": "U"}
SUCCESS, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
FIRST = 2
LIMIT_S = 0.12
"""What was mended took 0.13 to 2 s."""

PRODUCER, CONSUMER, ROOT = known_as("producer"), known_as("consumer"), known_as("root")


@pytest.fixture
def users() -> Users:
    """Return one user of each kind."""
    return usual_users()


@pytest.fixture
async def broker(tmp_path: Path, users: Users) -> AsyncIterator[BrokerController]:
    """Run a broker with two topics and a group."""
    async with guarded_broker(tmp_path, users) as controller:
        async with client_of(controller, ROOT) as client:
            await client.make_topic("T")
            await client.make_topic("U")
            await client.heartbeat("T", group="G")
            # The compiled core takes only queues that hold something.
            for _ in range(FIRST):
                for topic in ("T", "U"):
                    await client.send(topic, b"first")
        # The member has gone before anybody looks.
        await until(lambda: not controller.consumers.groups)
        yield controller


@pytest.fixture
async def wire(broker: BrokerController) -> AsyncIterator[Wire]:
    """Connect to the broker."""
    async with wire_to(broker) as connection:
        yield connection


@pytest.fixture
async def consumer(broker: BrokerController) -> AsyncIterator[SignedClient]:
    """Connect the consumer."""
    async with client_of(broker, CONSUMER) as client:
        yield client


def bodies(broker: BrokerController, topic: str = "T") -> list[bytes]:
    """Return the numbers of messages in a queue, as their bodies."""
    result = broker.store.get_message(topic, 0, 0, 1_000, 1 << 20, None)
    data = b"".join(result.slices)
    return [word for word in (b"good-%d" % n for n in range(600)) if word + b";" in data]


def stored(broker: BrokerController, topic: str = "T") -> int:
    """Return how many messages a test has stored."""
    return broker.store.max_offset(topic, 0) - FIRST


def send(opaque: int, credentials: Any, body: bytes = b"bad;", **more: Any) -> bytes:
    """Return a send to T."""
    fields = send_fields(more.pop("topic", "T"), **more.pop("fields", {}))
    return signed_frame(Code.SEND_MESSAGE_V2, fields, credentials, body, opaque=opaque, **more)


@pytest.mark.parametrize("form", [0, SERIALIZE_BINARY])
async def test_one_read_of_many_sends(broker: BrokerController, wire: Wire, form: int) -> None:
    """Some are signed, some not, some by others; each is judged by itself and in its turn."""
    nobodies = [None, known_as("producer", "wrong"), known_as("stranger"), CONSUMER, None]
    frames: list[bytes] = []
    expected: dict[int, int] = {}
    for number in range(100):
        is_good = number % 3 == 0
        credentials = PRODUCER if is_good else nobodies[number % 5]
        body = b"good-%d;" % number if is_good else b"bad;"
        frames.append(send(number, credentials, body, form=form))
        expected[number] = SUCCESS if is_good else REFUSED
    wire.write(*frames)
    assert await wire.codes(100) == expected
    assert bodies(broker) == [b"good-%d" % number for number in range(0, 100, 3)]
    assert stored(broker) == 34


async def test_a_read_that_is_one_unsigned_request(broker: BrokerController, wire: Wire) -> None:
    """A single send or pull has the shortest way of all."""
    before = everything(broker)
    wire.write(send(1, None))
    assert await wire.codes(1) == {1: REFUSED}
    for opaque, credentials in ((2, None), (3, PRODUCER), (4, known_as("consumer", "wrong"))):
        wire.write(signed_frame(Code.PULL_MESSAGE, pull_fields("T", "G"), credentials,
                                opaque=opaque))  # fmt: skip
        assert await wire.codes(1) == {opaque: REFUSED}
    commit = pull_fields("T", "G", sysFlag=5, commitOffset=0)
    wire.write(signed_frame(Code.PULL_MESSAGE, commit, None, opaque=5))
    assert await wire.codes(1) == {5: REFUSED}
    assert everything(broker) == before


async def test_one_read_of_all_kinds(broker: BrokerController, wire: Wire) -> None:
    """Sends, pulls and others in one read, each kind signed and not."""
    frames: list[bytes] = []
    expected: dict[int, int] = {}
    for number in range(0, 90, 6):
        requests = [
            (send(number, PRODUCER, b"good-%d;" % number), SUCCESS),
            (send(number + 1, None), REFUSED),
            (pull(number + 2, None), REFUSED),
            (pull(number + 3, CONSUMER), SUCCESS),
            (signed_frame(Code.GET_MAX_OFFSET, QUEUE, None,
                          opaque=number + 4), REFUSED),
            (signed_frame(Code.GET_MAX_OFFSET, QUEUE, CONSUMER,
                          opaque=number + 5), SUCCESS),
        ]  # fmt: skip
        frames += [frame for frame, _ in requests]
        expected |= {number + index: code for index, (_, code) in enumerate(requests)}
    wire.write(*frames)
    assert await wire.codes(90) == expected
    assert stored(broker) == 15


def pull(opaque: int, credentials: Any, **more: Any) -> bytes:
    """Return a pull of T."""
    fields = pull_fields("T", "G", **more)
    return signed_frame(Code.PULL_MESSAGE, fields, credentials, opaque=opaque)


async def test_oneway_requests_have_neither_answer_nor_effect(
    broker: BrokerController, wire: Wire
) -> None:
    """Of what is refused nobody hears, and nothing is done; a good one is done."""
    before = everything(broker)
    offset: Fields = {"topic": "T", "consumerGroup": "G", "queueId": 0, "commitOffset": 0}
    for credentials in (None, known_as("root", "wrong"), known_as("nothing"), known_as("disabled")):
        wire.write(
            send(1, credentials, is_oneway=True),
            signed_frame(Code.PULL_MESSAGE, pull_fields("T", "G", sysFlag=5), credentials,
                         is_oneway=True),
            signed_frame(Code.UPDATE_CONSUMER_OFFSET, offset, credentials, is_oneway=True),
            signed_frame(Code.UPDATE_BROKER_CONFIG, {}, credentials, b"maxMessageSize=4096",
                         is_oneway=True),
            signed_frame(Code.END_TRANSACTION, {"commitLogOffset": 0}, credentials,
                         is_oneway=True),
            signed_frame(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, credentials,
                         is_oneway=True),
        )  # fmt: skip
    # The next answer is that to the next request, so the others had none.
    wire.write(send(77, None))
    assert await wire.codes(1) == {77: REFUSED}
    assert everything(broker) == before
    wire.write(send(1, PRODUCER, b"good-1;", is_oneway=True), send(78, None))
    assert await wire.codes(1) == {78: REFUSED}
    assert bodies(broker) == [b"good-1"]


def header(code: str, fields: dict[str, str], opaque: int, more: str = "") -> str:
    """Return a JSON header with the code written as is."""
    return (
        f'{{"code":{code},"extFields":{json.dumps(fields)},"flag":0,"language":"JAVA",'
        f'"opaque":{opaque},"version":401{more}}}'
    )


def signed_fields(fields: dict[str, Any], credentials: Any, body: bytes = b"") -> dict[str, str]:
    """Return fields with a signature."""
    command = RemotingCommand.request(0, fields, body)
    sign(command, credentials)
    return command.ext_fields


async def test_a_doubled_code_is_not_judged_as_one_and_done_as_the_other(
    broker: BrokerController, wire: Wire
) -> None:
    """Whichever of them counts: it is one request, or none."""
    both = {**send_fields("T"), **pull_fields("T", "G"), "topic": "T", "queueId": 0}
    fields = signed_fields(both, CONSUMER, b"bad;")  # It may read T, and not write it.
    before = everything(broker)
    opaque = 0
    for first, last in ((11, 310), (310, 11), (30, 310), (310, 30), (10, 30), (310, 25), (11, 25)):
        opaque += 1
        wire.write(json_frame(header(f'{first},"code":{last}', fields, opaque), b"bad;"))
        (answer,) = await wire.answers(1)
        assert answer.opaque == opaque
        # As what it is judged to be it may be answered; as a send it must not be stored.
        assert answer.code == REFUSED or last in (11, 30), (first, last, answer.remark)
        assert stored(broker) == 0
    after = everything(broker)
    assert after == before


async def test_doubled_fields(broker: BrokerController, wire: Wire) -> None:
    """A field that comes twice is judged as it is carried out."""
    fields = signed_fields(send_fields("T"), PRODUCER, b"x")
    text = json.dumps(fields)
    for opaque, inner in enumerate(
        (
            text.replace('"b": "T"', '"b": "T","b": "U"'),
            text.replace('"b": "T"', '"b": "U","b": "T"'),
            text.replace('"AccessKey": "producer"', '"AccessKey": "producer","AccessKey": "root"'),
        )
    ):
        assert inner != text
        whole = f'{{"code":310,"extFields":{inner},"flag":0,"opaque":{opaque},"version":401}}'
        wire.write(json_frame(whole, b"x"))
    answers = await wire.codes(3)
    assert stored(broker, "U") == 0
    # The last one of each counts, so the second is a send to T, which is what was signed.
    assert answers == {0: REFUSED, 1: SUCCESS, 2: REFUSED}


@pytest.mark.parametrize(
    ("name", "other"),
    [("AccessKey", "accesskey"), ("AccessKey", "ACCESSKEY"), ("Signature", "signature")],
)
async def test_names_of_fields_are_exact(
    broker: BrokerController, wire: Wire, name: str, other: str
) -> None:
    """Another spelling is another field."""
    fields = signed_fields(send_fields("T"), ROOT, b"x")
    fields[other] = fields.pop(name)
    wire.write(json_frame(header("310", fields, 1), b"x"))
    assert await wire.codes(1) == {1: REFUSED}
    fields = signed_fields(send_fields("T"), PRODUCER, b"x") | {"accesskey": "root", "B": "U"}
    wire.write(json_frame(header("310", fields, 2), b"x"))
    assert await wire.codes(1) == {2: REFUSED}  # They were added to what was signed.
    assert stored(broker) == 0


async def test_requests_without_fields(broker: BrokerController, wire: Wire) -> None:
    """Empty, null or absent."""
    before = everything(broker)
    for opaque, fields in enumerate(('"extFields":{},', '"extFields":null,', "")):
        for code in (310, 11, 34, 25, 200):
            wire.write(json_frame(f'{{"code":{code},{fields}"opaque":{opaque},"flag":0}}'))
            assert await wire.codes(1) == {opaque: REFUSED}
    assert everything(broker) == before


async def test_identity_is_of_a_request_and_not_of_a_connection(
    broker: BrokerController, wire: Wire
) -> None:
    """What somebody else did over the same connection does not count."""
    for opaque, (credentials, code) in enumerate(
        [(ROOT, SUCCESS), (None, REFUSED), (PRODUCER, SUCCESS), (CONSUMER, REFUSED),
         (known_as("root", "x"), REFUSED), (ROOT, SUCCESS)]
    ):  # fmt: skip
        wire.write(send(opaque, credentials))
        assert await wire.codes(1) == {opaque: code}
    assert stored(broker) == 3


async def test_a_signature_of_another_request_is_no_good(
    broker: BrokerController, wire: Wire
) -> None:
    """Its fields and body are what was signed."""
    good = signed_fields(send_fields("T"), PRODUCER)
    wire.write(json_frame(header("310", good, 1), b"another body"))
    assert await wire.codes(1) == {1: REFUSED}
    wire.write(json_frame(header("310", good | {"b": "U"}, 2)))
    assert await wire.codes(1) == {2: REFUSED}


async def test_answers_are_no_requests(broker: BrokerController, wire: Wire) -> None:
    """What claims to be an answer is dropped, whatever its code."""
    before = everything(broker)
    for code in (310, 11, 25, 10):
        whole = header(str(code), signed_fields(send_fields("T"), ROOT, b"x"), code)
        wire.write(json_frame(whole.replace('"flag":0', '"flag":1'), b"x"))
        wire.write(json_frame(f'{{"code":{code},"opaque":{code},"flag":1}}'))
    wire.write(send(1, None))
    assert await wire.codes(1) == {1: REFUSED}
    assert everything(broker) == before


async def test_a_broker_of_another_name_tells_nobody(broker: BrokerController, wire: Wire) -> None:
    """Who signs nothing does not even learn that."""
    fields: Fields = {"topic": "T", "queueId": 0, "bname": "another"}
    wire.write(signed_frame(Code.GET_MAX_OFFSET, fields, None, opaque=1))
    assert await wire.codes(1) == {1: REFUSED}
    wire.write(signed_frame(Code.GET_MAX_OFFSET, fields, CONSUMER, opaque=2))
    assert await wire.codes(1) == {2: ResponseCode.SERVICE_NOT_AVAILABLE}


WAITS: Fields = {"queueOffset": FIRST, "sysFlag": 6, "suspendTimeoutMillis": 60_000}


async def held(broker: BrokerController, count: int) -> None:
    """Return once so many pulls wait."""
    await until(lambda: len(broker.pull_holds) == count)


@pytest.mark.parametrize(
    "change", [{"is_enabled": False}, {"rules": NO_RULES}], ids=["disabled", "without rules"]
)
async def test_pulls_that_wait_end_with_their_user(
    broker: BrokerController, users: Users, wire: Wire, change: dict[str, Any]
) -> None:
    """At once, and those of others go on waiting."""
    users.add("reader", ("Topic:T", "Sub"), ("Group:G", "Sub"))
    for opaque in range(50):
        wire.write(pull(opaque, CONSUMER, **WAITS))
    wire.write(pull(50, known_as("reader"), **WAITS))
    await held(broker, 51)
    users.change("consumer", **change)
    assert await wire.codes(50) == dict.fromkeys(range(50), REFUSED)
    await held(broker, 1)
    wire.write(send(60, PRODUCER))
    assert await wire.codes(2) == {50: SUCCESS, 60: SUCCESS}


async def test_a_message_is_handed_to_nobody_who_may_not_have_it_any_more(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """Even where the message is there before anybody has looked at the pulls that wait."""
    wire.write(pull(1, CONSUMER, **WAITS))
    await held(broker, 1)
    # As if the listeners had not run yet.
    users.table["consumer"] = replace(users.table["consumer"], is_enabled=False)
    wire.write(send(2, PRODUCER, b"secret"))
    answers = {answer.opaque: answer for answer in await wire.answers(2)}
    assert answers[2].code == SUCCESS
    assert (answers[1].code, answers[1].body) == (REFUSED, b"")


async def test_half_messages_are_ended_by_those_who_may_send(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """By the topic that they are meant for, whatever the request says of a topic."""
    users.add("other", ("Topic:U", "Pub"))
    half = {"f": 4, "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"}
    wire.write(send(1, PRODUCER, b"good-1;", fields=half))
    (answer,) = await wire.answers(1)
    assert answer.code == SUCCESS, answer.remark
    offset = int(answer.ext_fields["msgId"][16:], 16)
    end: Fields = {
        "producerGroup": "PG", "tranStateTableOffset": 0, "commitLogOffset": offset,
        "commitOrRollback": 8, "fromTransactionCheck": False, "msgId": "K1",
    }  # fmt: skip
    end_of_log = broker.store.commit_log.end
    opaque = 10
    for credentials in (None, CONSUMER, known_as("other"), known_as("producer", "wrong")):
        for more in NO_TOPIC, OTHER_TOPIC:
            opaque += 1
            frame = signed_frame(Code.END_TRANSACTION, {**end, **more}, credentials, opaque=opaque)
            wire.write(frame)
            assert await wire.codes(1) == {opaque: REFUSED}
    assert broker.store.commit_log.end == end_of_log
    assert stored(broker) == 0
    wire.write(signed_frame(Code.END_TRANSACTION, end, PRODUCER, opaque=2))
    assert await wire.codes(1) == {2: SUCCESS}
    assert bodies(broker) == [b"good-1"]


async def test_what_is_relayed_carries_no_signature(
    broker: BrokerController, consumer: SignedClient
) -> None:
    """A consumer that is asked must not get what it could send again in an administrator's name."""
    consumer.respond = lambda command: command.response(SUCCESS, body=b"{}")
    await consumer.heartbeat("T", group="G")
    async with client_of(broker, ROOT) as root:
        fields: Fields = {
            "consumerGroup": "G",
            "clientId": consumer.client_id,
            "jstackEnable": False,
        }
        answer = await root.call(Code.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == SUCCESS
    relayed = await consumer.next_push(Code.GET_CONSUMER_RUNNING_INFO)
    assert relayed.ext_fields.keys() == {"consumerGroup", "clientId", "jstackEnable"}


async def test_many_refusals_hold_nobody_up(broker: BrokerController, wire: Wire) -> None:
    """Thousands of unsigned sends in a few reads, and another client is served meanwhile."""
    wire.write(*(send(number, None, b"") for number in range(4_000)))
    async with client_of(broker, PRODUCER) as client:
        loop = asyncio.get_running_loop()
        slowest_s = 0.0
        for _ in range(20):
            began_s = loop.time()
            await client.send("T", b"x")
            slowest_s = max(slowest_s, loop.time() - began_s)
    assert slowest_s < at_most_s(2, 20)
    assert set((await wire.codes(4_000)).values()) == {REFUSED}
    assert stored(broker) == 20


def keyed_send(opaque: int, credentials: Any, **more: Any) -> bytes:
    """Return a send as clients make it, with an id, which the compiled core can take."""
    key = {"i": f"UNIQ_KEY\x01{opaque:032X}\x02"}
    return send(opaque, credentials, b"good-%d;" % opaque, fields=key, **more)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the messages of each round that the compiled core has taken."""
    counts: list[int] = []
    publish = SendRounds._publish

    def note(self: SendRounds, round_: Any, now_ms: int) -> None:
        counts.append(round_.message_count)
        publish(self, round_, now_ms)

    monkeypatch.setattr(SendRounds, "_publish", note)
    return counts


@pytest.mark.core
@pytest.mark.parametrize("form", [0, SERIALIZE_BINARY])
async def test_the_compiled_core_takes_what_was_allowed_before(
    broker: BrokerController, wire: Wire, taken: list[int], form: int
) -> None:
    """The first one is judged by the guard; a read of many that follow is one round of the core."""
    assert core.FOUND.is_used
    wire.write(keyed_send(1, PRODUCER))
    assert await wire.codes(1) == {1: SUCCESS}
    assert taken == []
    wire.write(*(keyed_send(number, PRODUCER, form=form) for number in range(2, 52)))
    assert set((await wire.codes(50)).values()) == {SUCCESS}
    assert sum(taken) == stored(broker) - 1 == 50


@pytest.mark.core
@pytest.mark.parametrize(
    "credentials",
    [None, known_as("producer", "wrong"), known_as("stranger"), CONSUMER, known_as("disabled")],
)
async def test_the_compiled_core_takes_nothing_of_others(
    broker: BrokerController, wire: Wire, taken: list[int], credentials: Any
) -> None:
    """Neither alone nor between good ones of one read."""
    wire.write(keyed_send(1, PRODUCER))
    await wire.codes(1)
    wire.write(*(keyed_send(number, credentials) for number in range(2, 12)))
    assert set((await wire.codes(10)).values()) == {REFUSED}
    assert taken == []
    wire.write(keyed_send(52, PRODUCER))
    assert await wire.codes(1) == {52: SUCCESS}
    wire.write(keyed_send(53, PRODUCER), keyed_send(54, credentials), keyed_send(55, PRODUCER))
    assert await wire.codes(3) == {53: SUCCESS, 54: REFUSED, 55: SUCCESS}
    assert stored(broker) == 4


@pytest.mark.core
async def test_the_compiled_core_takes_no_other_topic(
    broker: BrokerController, wire: Wire, taken: list[int]
) -> None:
    """What is allowed for one topic is for that one only, whoever else sends to the other."""
    for topic, credentials in (("T", PRODUCER), ("U", ROOT)):
        wire.write(keyed_send(1, credentials, topic=topic))
        await wire.codes(1)
    wire.write(keyed_send(2, PRODUCER, topic="U"))
    assert await wire.codes(1) == {2: REFUSED}
    assert taken == [1], "that of root, who was allowed before"


@pytest.mark.core
async def test_the_compiled_core_takes_nothing_that_was_changed(
    broker: BrokerController, wire: Wire, taken: list[int]
) -> None:
    """A signature is over every field and the body."""
    wire.write(keyed_send(1, PRODUCER))
    await wire.codes(1)
    good = keyed_send(2, PRODUCER)
    for old, new in ((b"good-2;", b"evil-2;"), (b'"PG"', b'"QG"'), (b'"b":"T"', b'"b":"U"')):
        assert good.count(old) == 1
        wire.write(good.replace(old, new))
        assert await wire.codes(1) == {2: REFUSED}
    assert taken == []
    wire.write(keyed_send(3, PRODUCER), good)
    assert await wire.codes(2) == {3: SUCCESS, 2: SUCCESS}


@pytest.mark.core
@pytest.mark.parametrize(
    "change", [{"is_enabled": False}, {"rules": NO_RULES}, {"secrets": (b"another",)}]
)
async def test_the_compiled_core_takes_nothing_after_a_change_of_users(
    broker: BrokerController, users: Users, wire: Wire, taken: list[int], change: dict[str, Any]
) -> None:
    """From the next request on, also of one that is kept for the end of the round."""
    wire.write(keyed_send(1, PRODUCER))
    await wire.codes(1)
    wire.write(keyed_send(2, PRODUCER))
    await wire.codes(1)
    assert taken == [1]
    users.change("producer", **change)
    wire.write(keyed_send(3, PRODUCER))
    assert await wire.codes(1) == {3: REFUSED}
    assert taken == [1]
    assert stored(broker) == 2


@pytest.mark.core
async def test_after_a_failure_the_guard_looks_first_again(
    broker: BrokerController, wire: Wire, taken: list[int]
) -> None:
    """So nobody tries secrets at the speed of the core."""
    for number in (1, 2):
        wire.write(keyed_send(number, PRODUCER))
        await wire.codes(1)
    assert taken == [1]
    wire.write(keyed_send(3, known_as("producer", "guess")))
    assert await wire.codes(1) == {3: REFUSED}
    wire.write(keyed_send(4, PRODUCER))
    assert await wire.codes(1) == {4: SUCCESS}
    assert taken == [1]
    wire.write(keyed_send(5, PRODUCER))
    assert await wire.codes(1) == {5: SUCCESS}
    assert taken == [1, 1]


def _filled(head: str, item: Callable[[int], str], tail: str, size: int) -> bytes:
    """Return a body of as many items as there is room for."""
    parts: list[str] = []
    left = size - len(head) - len(tail)
    while (left := left - len(item(len(parts))) - 1) >= 0:
        parts.append(item(len(parts)))
    return (head + ",".join(parts) + tail).encode()


def _heavy() -> dict[str, tuple[int, bytes]]:
    """Return requests about as much as their bodies may hold."""
    subscribed = '{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":['
    members, group = '{"clientID":"c","consumerDataSet":[', '{{"groupName":"{:x}"}}'
    locked = '{"consumerGroup":"G","clientId":"c","mqSet":['
    queue = '{{"topic":"{:x}","brokerName":"broker-a","queueId":1}}'
    return {
        "subscriptions": (
            Code.HEART_BEAT, _filled(subscribed, '{{"topic":"{:x}"}}'.format, "]}]}", 90_000),
        ),
        "groups": (Code.HEART_BEAT, _filled(members, group.format, "]}", 110_000)),
        "locks": (Code.LOCK_BATCH_MQ, _filled(locked, queue.format, "]}", 1 << 20)),
        "topics": (
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            _filled('{"topicConfigList":[', '{{"topicName":"{:x}"}}'.format, "]}", 1 << 20),
        ),
        "cold limits": (
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            b"\n".join(b"%x=1" % number for number in range(9_500)),
        ),
        "one name": (Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, b"g" * (4 << 20)),
    }  # fmt: skip


@pytest.mark.parametrize("name", _heavy())
async def test_what_a_request_needs_is_told_in_no_time(
    tmp_path: Path, users: Users, name: str
) -> None:
    """Whoever may do all of it, by hundreds of rules, holds nobody up; nor does a huge name."""
    rules = [(f"Topic:x{number}*", "Sub") for number in range(200)]
    users.add("many", *rules, ("Topic:*", "All"), ("Group:*", "All"))
    code, body = _heavy()[name]
    async with (
        guarded_broker(tmp_path, users) as controller,
        client_of(controller, known_as("many")) as client,
        LoopLag() as lag,
    ):
        answer = await client.call(code, {}, body)
    assert answer.code == REFUSED
    assert len(answer.remark or "") < 400
    assert lag.longest_s < LIMIT_S
