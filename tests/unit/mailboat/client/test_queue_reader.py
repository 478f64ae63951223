import asyncio

import pytest

from mailboat.client import queue_reader, refusals
from mailboat.client.name_servers import NameServers
from mailboat.client.pulling import Puller, PullRequest, PullResult, PullStatus
from mailboat.client.queue_reader import QueueReader
from mailboat.client.routes import RouteCache
from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import build_subscription
from mailboat.protocol.codes import RequestCode
from mailboat.remoting.client import RemotingClient

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("T1", "a", 1)
# Written by the encoder of rocketmq 4.9.8: body "hello", TAGS=TagA, k=v, queue 1, offset 2.
RECORD = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000001 00000000 0000000000000002 00000000000003e8 00000000 "
    "0000018bcfe56800 0a000001000004d2 0000018bcfe5687b 0a00000200002a9f 00000000 "
    "0000000000000000 00000005 68656c6c6f 02 5431 000d 6b017602 54414753 01 54616741"
)


def answer(code: int, next_offset: int, body: bytes = b"", slave: int = 0, remark: str = "remark"):
    """Return a pull answer of a broker."""
    fields = {
        "nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": 9,
        "suggestWhichBrokerId": slave,
    }  # fmt: skip
    return lambda command: command.response(code, remark, fields, body)


class Script:
    """Answers pulls one after the other, then never."""

    def __init__(self, *answers) -> None:
        """Give these answers in turn."""
        self.answers = list(answers)

    def __call__(self, command):
        """Give the next answer."""
        return self.answers.pop(0)(command) if self.answers else None


class Sink:
    """Remembers what it was given."""

    def __init__(self) -> None:
        """Begin with no events."""
        self.events: asyncio.Queue = asyncio.Queue()

    async def wait_for_room(self) -> None:
        """Never be full."""

    def take(self, result: PullResult) -> None:
        """Remember offsets."""
        offsets = [message.queue_offset for message in result.messages]
        self.events.put_nowait((offsets, result.next_offset))

    def moved(self, queue_offset: int) -> None:
        """Remember the move."""
        self.events.put_nowait(("moved", queue_offset))


@pytest.fixture
async def broker(make_peer, name_server):
    """Return a broker with topic T1, whose pulls the test scripts."""
    peer = await make_peer()
    name_server.set_route("T1", {"a": peer.address})
    return peer


@pytest.fixture
async def puller(name_server):
    """Return a puller."""
    remoting = RemotingClient()
    yield Puller(remoting, RouteCache(NameServers([name_server.address], remoting)))
    await remoting.close()


@pytest.fixture
async def read(puller):
    """Return a function that starts reading from offset 2."""
    tasks = []

    def start(sink: Sink, expression: str = "*") -> None:
        subscription = build_subscription("T1", expression, 77)
        reader = QueueReader(puller, "G", QUEUE, subscription, 32, sink)
        tasks.append(asyncio.ensure_future(reader.read_from(2)))

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_pull_request_of_a_reader(broker, read):
    """A long poll carries subscription, group and offsets; sysFlag is 2+4: nothing is committed."""
    broker.answer(PULL, Script())
    read(Sink(), "TagA || TagB")
    (request,) = await broker.wait_asked(PULL)
    assert request.ext_fields == {
        "consumerGroup": "G", "topic": "T1", "queueId": "1", "queueOffset": "2",
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "TagA || TagB", "subVersion": "77", "expressionType": "TAG", "bname": "a",
    }  # fmt: skip


async def test_reading_goes_on_where_the_broker_says(broker, read):
    """Found messages, an unmatched stretch and a move each decide where the next pull begins."""
    broker.answer(PULL, Script(answer(0, 3, RECORD), answer(20, 8), answer(21, 5)))
    sink = Sink()
    read(sink)
    assert await sink.events.get() == ([2], 3)
    assert await sink.events.get() == ([], 8)
    assert await sink.events.get() == ("moved", 5)
    requests = await broker.wait_asked(PULL, 4)
    assert [request.ext_fields["queueOffset"] for request in requests] == ["2", "3", "8", "5"]


async def test_tag_is_compared_as_text(broker, read):
    """A message whose hash matched by chance is dropped, and the offset still moves on."""
    broker.answer(PULL, Script(answer(0, 3, RECORD)))
    sink = Sink()
    read(sink, "TagB")
    assert await sink.events.get() == ([], 3)


async def test_refused_pull_is_tried_again(broker, read, monkeypatch, caplog):
    """A broker that refuses for a while is asked again, and the log says it once."""
    monkeypatch.setattr(queue_reader, "ERROR_PAUSE_S", 0.001)
    forbidden = answer(16, 0, remark="the topic[T1] pulling message is forbidden")
    broker.answer(PULL, Script(*[forbidden] * 3, answer(0, 3, RECORD)))
    sink = Sink()
    read(sink)
    assert await asyncio.wait_for(sink.events.get(), 5) == ([2], 3)
    warnings = [entry for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "User:bob has no permission to access Group:G from 10.0.0.1, no matched policies."),
        (1, "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T1, x"),
    ],
    ids=["ACL 2.0", "ACL 1.0"],
)
async def test_a_user_without_the_right_does_not_ask_at_once(
    broker, read, monkeypatch, caplog, code, remark
):
    """Somebody has to grant it first; the log says who lacks what, once for many tries."""
    monkeypatch.setattr(queue_reader, "ERROR_PAUSE_S", 0.001)
    monkeypatch.setattr(refusals, "REFUSED_PAUSE_S", 0.15)
    broker.answer(PULL, Script(*[answer(code, 0, remark=remark)] * 3, answer(0, 3, RECORD)))
    sink = Sink()
    began_s = asyncio.get_running_loop().time()
    read(sink)
    assert await asyncio.wait_for(sink.events.get(), 5) == ([2], 3)
    assert asyncio.get_running_loop().time() - began_s >= 3 * 0.15
    assert caplog.text.count(remark) == 1
    assert "pull topic=T1 group=G" in caplog.text


async def test_a_broker_that_stays_busy_is_asked_more_and_more_seldom(
    broker, read, monkeypatch, caplog
):
    """Twice as long each time, up to a limit; an answer begins anew, and the log says it once."""
    monkeypatch.setattr(queue_reader, "BUSY_PAUSE_MAX_S", 0.08)
    busy = answer(2, 0, remark="[FLOW]10 pulls of user u wait")
    script = [*[busy] * 5, answer(0, 3, RECORD), busy, answer(20, 8)]
    broker.answer(PULL, Script(*script))
    sink = Sink()
    began_s = asyncio.get_running_loop().time()
    read(sink)
    assert await asyncio.wait_for(sink.events.get(), 5) == ([2], 3)
    assert asyncio.get_running_loop().time() - began_s >= 0.02 + 0.04 + 3 * 0.08
    assert caplog.text.count("is put off") == 1
    assert "[FLOW]10 pulls of user u wait" in caplog.text
    assert await asyncio.wait_for(sink.events.get(), 5) == ([], 8)
    assert caplog.text.count("is put off") == 1


async def test_damaged_body_is_pulled_again(broker, read, monkeypatch):
    """Bytes damaged on the way are not delivered and not skipped."""
    monkeypatch.setattr(queue_reader, "ERROR_PAUSE_S", 0.001)
    damaged = RECORD[:90] + bytes([RECORD[90] ^ 1]) + RECORD[91:]
    broker.answer(PULL, Script(answer(0, 3, damaged), answer(0, 3, RECORD)))
    sink = Sink()
    read(sink)
    assert await asyncio.wait_for(sink.events.get(), 5) == ([2], 3)


async def test_suggested_slave_is_pulled_next(broker, make_peer, name_server, puller):
    """The broker id of an answer decides where the next pull of the queue goes."""
    slave = await make_peer()
    slave.answer(PULL, Script(answer(19, 3)))
    broker.answer(PULL, Script(answer(19, 2, slave=1)))
    name_server.routes["T1"].broker_datas[0].broker_addrs[1] = slave.address
    request = PullRequest("G", QUEUE, 2, build_subscription("T1", "*"), 32)
    await puller.pull(request)
    result = await puller.pull(request)
    assert (result.status, result.next_offset) == (PullStatus.NO_NEW_MSG, 3)


async def test_single_pull_does_not_suspend(broker, puller):
    """Without a suspend time the broker answers at once: the bit is clear."""
    broker.answer(PULL, Script(answer(19, 2), answer(24, 0)))
    request = PullRequest("G", QUEUE, 2, build_subscription("T1", "*"), 32)
    await puller.pull(request)
    assert broker.asked(PULL)[0].ext_fields["sysFlag"] == "4"
    with pytest.raises(BrokerError):
        await puller.pull(request)
