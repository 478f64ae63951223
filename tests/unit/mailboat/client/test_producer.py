import asyncio

import pytest

from mailboat.client.producer import Producer
from mailboat.client.send_result import SendStatus
from mailboat.errors import (
    BrokerError,
    ConnectError,
    ConnectionLostError,
    IllegalMessageError,
    MailboatError,
    RequestTimeoutError,
)
from mailboat.model.message import Message
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2
FIELDS = {
    "msgId": "7F000001000051AF0000000000000000", "queueId": 1, "queueOffset": 42,
    "MSG_REGION": "DefaultRegion", "TRACE_ON": True,
}  # fmt: skip
HANGS_S = 60
"""What only a send that hangs takes."""


def stored(command: RemotingCommand) -> RemotingCommand:
    """Answer a send as a broker that stored it."""
    return command.response(0, ext_fields=FIELDS)


def answering(code: int):
    """Return a script that answers every request with one code."""
    return lambda command: command.response(code, "the remark", FIELDS)


async def two_brokers(name_server, make_peer, first, second):
    """Put topic T on two brokers with these scripts for sends."""
    peers = {"a": await make_peer(), "b": await make_peer()}
    for peer, script in zip(peers.values(), (first, second), strict=True):
        peer.answer(SEND, script)
        peer.answer(RequestCode.HEART_BEAT, lambda command: command.response(0))
        peer.answer(RequestCode.UNREGISTER_CLIENT, lambda command: command.response(0))
    # More queues on each broker than there are tries, so that only a change of broker helps.
    name_server.set_route("T", {name: peer.address for name, peer in peers.items()}, queues=4)
    return list(peers.values())


def sends(peers) -> list[int]:
    """Return how many sends each peer got."""
    return [len(peer.asked(SEND)) for peer in peers]


async def test_result_of_a_send(name_server, make_peer):
    """The result says where the message is, in the broker's words."""
    await two_brokers(name_server, make_peer, stored, stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        result = await producer.send(Message("T", b"x"))
    assert result.status is SendStatus.SEND_OK
    assert result.offset_message_id == "7F000001000051AF0000000000000000"
    assert (result.message_queue.queue_id, result.queue_offset) == (1, 42)
    assert (result.region, result.trace_on) == ("DefaultRegion", True)
    assert len(result.message_id) == 32


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_weaker_outcomes_are_results(name_server, make_peer, code, status):
    """A message that is stored less safely than asked is not sent again."""
    peers = await two_brokers(name_server, make_peer, answering(code), answering(code))
    async with Producer("G", namesrv=name_server.address) as producer:
        assert (await producer.send(Message("T", b"x"))).status is status
    assert sum(sends(peers)) == 1


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
async def test_retried_codes_go_to_the_other_broker(name_server, make_peer, code):
    """A refusal that another broker may not share is tried there, and succeeds."""
    peers = await two_brokers(name_server, make_peer, answering(code), stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        for _ in range(8):
            result = await producer.send(Message("T", b"x"))
            assert result.message_queue.broker_name == "b"
    assert sends(peers)[0] > 0
    assert sends(peers)[1] == 8


@pytest.mark.parametrize("code", [13, 29, 604])
async def test_other_codes_are_raised_at_once(name_server, make_peer, code):
    """A message that no broker will take is refused after one try."""
    peers = await two_brokers(name_server, make_peer, answering(code), answering(code))
    async with Producer("G", namesrv=name_server.address) as producer:
        with pytest.raises(BrokerError, match="the remark") as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.code == code
    assert sum(sends(peers)) == 1


@pytest.mark.parametrize("code", [2, 16])
async def test_three_tries_at_most(name_server, make_peer, code):
    """One send and two retries, then the last refusal is raised."""
    peers = await two_brokers(name_server, make_peer, answering(code), answering(code))
    async with Producer("G", namesrv=name_server.address) as producer:
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"x"))
    assert sum(sends(peers)) == 3
    assert sorted(sends(peers)) == [1, 2]


async def test_chosen_queue_is_not_left(name_server, make_peer):
    """With a chosen queue, or a selector, a failure is raised: order matters more."""
    peers = await two_brokers(name_server, make_peer, answering(2), stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        queues = await producer.queues("T")
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"x"), queue=queues[0])
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"x"), selector=lambda found, message: found[1])
    assert sends(peers) == [2, 0]
    assert [request.ext_fields["e"] for request in peers[0].asked(SEND)] == ["0", "1"]


async def test_lost_connection_is_tried_elsewhere(name_server, make_peer):
    """A broker that closes the connection instead of answering costs a try, not the message."""
    peers = await two_brokers(name_server, make_peer, lambda command: hang_up(peers[0]), stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        for _ in range(4):
            assert (await producer.send(Message("T", b"x"))).message_queue.broker_name == "b"


def hang_up(peer) -> None:
    """Close the connections of a peer without an answer."""
    for connection in peer.connections:
        connection.close()


async def test_lost_connection_with_a_chosen_queue_is_an_unknown_outcome(name_server, make_peer):
    """Nobody may say that the message is stored or that it is not."""
    peers = await two_brokers(name_server, make_peer, lambda command: hang_up(peers[0]), stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        queues = await producer.queues("T")
        with pytest.raises(ConnectionLostError):
            await producer.send(Message("T", b"x"), queue=queues[0])


async def test_all_tries_share_one_timeout(name_server, make_peer):
    """A broker that does not answer uses the time up: the send ends when it is over."""
    peers = await two_brokers(name_server, make_peer, silence, silence)
    async with Producer("G", namesrv=name_server.address) as producer:
        await producer.queues("T")
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeoutError):
            await producer.send(Message("T", b"x"), timeout_s=0.2)
        assert 0.2 <= asyncio.get_running_loop().time() - started_s < HANGS_S
    assert sum(sends(peers)) == 1


@pytest.mark.parametrize("chosen", [False, True])
async def test_name_servers_that_do_not_answer_leave_no_doubt(chosen):
    """The time of a send counts for the question where the topic is, too, and nothing was sent."""
    silent = [await asyncio.start_server(hold, "127.0.0.1", 0) for _ in range(3)]
    addresses = [server.sockets[0].getsockname() for server in silent]
    namesrv = ";".join(f"{host}:{port}" for host, port in addresses)
    async with Producer("G", namesrv=namesrv) as producer:
        started_s = asyncio.get_running_loop().time()
        selector = (lambda queues, message: queues[0]) if chosen else None
        with pytest.raises(ConnectError, match="in the time that the send had"):
            await producer.send(Message("T", b"x"), timeout_s=0.3, selector=selector)
        assert 0.3 <= asyncio.get_running_loop().time() - started_s < HANGS_S
    for server in silent:
        server.close()


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a connection and say nothing."""
    await reader.read()
    writer.close()


def silence(command: RemotingCommand) -> None:
    """Do not answer."""


async def test_failed_broker_is_avoided_afterwards(name_server, make_peer):
    """With latency-fault avoidance a broker that failed once gets nothing for a while."""
    peers = await two_brokers(name_server, make_peer, answering(2), stored)
    producer = Producer("G", namesrv=name_server.address, latency_fault_avoidance=True)
    async with producer:
        for _ in range(8):
            await producer.send(Message("T", b"x"))
    assert sends(peers) == [1, 8] or sends(peers)[0] == 0


async def test_oneway_waits_for_nothing(name_server, make_peer):
    """A one-way send returns though the broker never answers."""
    peers = await two_brokers(name_server, make_peer, silence, silence)
    async with Producer("G", namesrv=name_server.address) as producer:
        for _ in range(4):
            await producer.send_oneway(Message("T", b"x"))
        # Answers come in the order of the requests of a connection: the sends were read before.
        for peer in peers:
            peer.answer(RequestCode.GET_MAX_OFFSET, stored)
            await producer._instance.remoting.request(
                peer.address, RemotingCommand.request(RequestCode.GET_MAX_OFFSET), 5.0
            )
    assert sum(sends(peers)) == 4
    assert all(request.is_oneway for peer in peers for request in peer.asked(SEND))


async def test_illegal_message_reaches_no_broker(name_server, make_peer):
    """A message that breaks a limit is refused before anything is sent."""
    peers = await two_brokers(name_server, make_peer, stored, stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        with pytest.raises(IllegalMessageError):
            await producer.send(Message("T", b""))
    assert sum(sends(peers)) == 0


async def test_producer_must_be_started(name_server):
    """A send before the start is an error that says what to do."""
    with pytest.raises(MailboatError, match="async with"):
        await Producer("G", namesrv=name_server.address).send(Message("T", b"x"))


async def test_producer_joins_and_leaves_its_group(name_server, make_peer):
    """Brokers learn of the producer with the first route, and hear when it is closed."""
    peers = await two_brokers(name_server, make_peer, stored, stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        await producer.send(Message("T", b"x"))
        for peer in peers:
            await peer.wait_asked(RequestCode.HEART_BEAT)
    (leaving,) = peers[0].asked(RequestCode.UNREGISTER_CLIENT)
    assert leaving.ext_fields["producerGroup"] == "G"
    assert b'"groupName":"G"' in peers[0].asked(RequestCode.HEART_BEAT)[0].body


@pytest.mark.parametrize("then", [answering(13), answering(2), stored])
async def test_unanswered_try_is_not_forgotten(name_server, make_peer, then):
    """Whatever comes after a lost answer, a refusal included, the message may be stored."""
    peer = await make_peer()
    codes = iter([None])

    def script(command: RemotingCommand) -> RemotingCommand | None:
        if next(codes, 0) is None:
            for connection in peer.connections:
                connection.abort()
            return None
        return then(command)

    peer.answer(SEND, script)
    peer.answer(RequestCode.HEART_BEAT, lambda command: command.response(0))
    peer.answer(RequestCode.UNREGISTER_CLIENT, lambda command: command.response(0))
    name_server.set_route("T", {"a": peer.address})
    async with Producer("G", namesrv=name_server.address) as producer:
        sending = producer.send(Message("T", b"x"))
        if then is stored:
            assert (await sending).is_repeated
            assert not (await producer.send(Message("T", b"x"))).is_repeated
        else:
            with pytest.raises(ConnectionLostError):
                await sending


async def test_copies_that_the_program_sends_may_share_an_id(name_server, make_peer):
    """A program that tries again for longer than a send does keeps the message's id."""
    await two_brokers(name_server, make_peer, stored, stored)
    async with Producer("G", namesrv=name_server.address) as producer:
        key = producer.next_unique_key()
        message = Message("T", b"x", properties={"UNIQ_KEY": key})
        assert [(await producer.send(message)).message_id for _ in range(2)] == [key, key]
        assert producer.next_unique_key() != key
