import asyncio

import pytest

from mailboat.client.send_result import SendStatus
from mailboat.client.transaction_producer import TransactionProducer, TransactionState
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.message import Message, MessageExt
from mailboat.model.properties import decode_properties
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import decode_heartbeat

SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION
CHECK = RequestCode.CHECK_TRANSACTION_STATE
# Broker 10.0.0.2:10911, physical offset 1000.
HALF_ID = "0A00000200002A9F00000000000003E8"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
# Queue 1, queue offset 2, physical offset 1000; properties UNIQ_KEY=ID7, PGROUP=G.
RECORD = (
    bytes.fromhex(
        "00000076 daa320a7 3610a686 00000001 00000000 0000000000000002 00000000000003e8 00000000 "
        "0000018bcfe56800 0a000001000004d2 0000018bcfe5687b 0a00000200002a9f 00000000 "
        "0000000000000000 00000005 68656c6c6f 01 54"
    )
    + b"\x00\x15UNIQ_KEY\x01ID7\x02PGROUP\x01G\x02"
)


def stored(code: int = 0):
    """Return a script for a broker that stored a half message."""
    fields = {"msgId": HALF_ID, "queueId": 1, "queueOffset": 42}
    return lambda command: command.response(code, ext_fields=fields)


class Broker:
    """A scripted broker with topic T."""

    def __init__(self, peer, send=None) -> None:
        """Store every half message."""
        self.peer = peer
        peer.answer(SEND, send or stored())
        peer.answer(END, lambda command: None)
        peer.answer(RequestCode.HEART_BEAT, lambda command: command.response(0))
        peer.answer(RequestCode.UNREGISTER_CLIENT, lambda command: command.response(0))

    def ask(self, record: bytes = RECORD) -> None:
        """Ask the producer how a transaction ended."""
        fields = {
            "commitLogOffset": 1000, "tranStateTableOffset": 2, "msgId": "ID7",
            "transactionId": "ID7", "offsetMsgId": HALF_ID, "bname": "a",
        }  # fmt: skip
        self.peer.push(RemotingCommand.request(CHECK, fields, record))

    async def ended(self, count: int = 1) -> RemotingCommand:
        """Return the last of so many END_TRANSACTION requests."""
        return (await self.peer.wait_asked(END, count))[-1]


@pytest.fixture
async def make_broker(make_peer, name_server):
    """Return a function that makes the broker of topic T."""

    async def make(send=None) -> Broker:
        peer = await make_peer()
        name_server.set_route("T", {"a": peer.address})
        return Broker(peer, send)

    return make


async def never(message: object, transaction_id: str = "") -> TransactionState:
    """Fail: this callback must not be called."""
    raise AssertionError("the callback was called")


def answering(state: object):
    """Return an `execute` that answers `state`."""

    async def execute(message: Message, transaction_id: str) -> TransactionState:
        return state  # type: ignore[return-value]

    return execute


async def test_half_message_says_what_it_is(name_server, make_broker):
    """It travels with TRAN_MSG, its producer group and sysFlag 4, and otherwise as any message."""
    broker = await make_broker()
    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        message = Message("T", b"x" * 5000, tags="t", properties={"p": "v"})
        result = await producer.send_in_transaction(message, answering(TransactionState.COMMIT))
        await broker.ended()
    (request,) = broker.peer.asked(SEND)
    properties = decode_properties(request.ext_fields["i"])
    assert properties == {
        "p": "v", "TAGS": "t", "WAIT": "true", "TRAN_MSG": "true", "PGROUP": "G",
        "UNIQ_KEY": result.sent.message_id,
    }  # fmt: skip
    assert request.ext_fields["f"] == str(0x301 | 4)
    assert message.properties == {"p": "v"}


@pytest.mark.parametrize(
    ("state", "number"),
    [
        (TransactionState.COMMIT, COMMIT),
        (TransactionState.ROLLBACK, ROLLBACK),
        (TransactionState.UNKNOWN, UNKNOWN),
    ],
)
async def test_end_names_the_half_message(name_server, make_broker, state, number):
    """The end is told one-way, with the half message's offsets and the transaction's id."""
    broker = await make_broker()
    seen: list[str] = []

    async def execute(message: Message, transaction_id: str) -> TransactionState:
        seen.append(transaction_id)
        assert broker.peer.asked(END) == []
        return state

    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), execute)
        end = await broker.ended()
    assert result.state is state
    assert seen == [result.sent.message_id]
    assert (end.is_oneway, end.remark) == (True, None)
    assert end.ext_fields == {
        "producerGroup": "G", "topic": "T", "bname": "a", "commitLogOffset": "1000",
        "tranStateTableOffset": "42", "commitOrRollback": str(number),
        "fromTransactionCheck": "false", "msgId": seen[0], "transactionId": seen[0],
    }  # fmt: skip


async def test_callback_that_raises_leaves_the_state_unknown(name_server, make_broker, caplog):
    """The broker is told UNKNOWN with the reason, and the program finds the error in the log."""
    broker = await make_broker()

    async def execute(message: Message, transaction_id: str) -> TransactionState:
        raise ValueError("no database")

    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), execute)
        end = await broker.ended()
    assert result.state is TransactionState.UNKNOWN
    assert (end.ext_fields["commitOrRollback"], end.remark) == ("0", "ValueError: no database")
    assert "no database" in caplog.text


async def test_forgotten_return_is_no_outcome(name_server, make_broker):
    """A callback that returns nothing has not committed, and the client goes on."""
    await make_broker()
    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), answering(None))
    assert result.state is TransactionState.UNKNOWN


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_half_message_that_is_not_safe_is_rolled_back(name_server, make_broker, code, status):
    """The local transaction does not run on a half message that a crash could lose."""
    broker = await make_broker(stored(code))
    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), never)
        end = await broker.ended()
    assert (result.sent.status, result.state) == (status, TransactionState.ROLLBACK)
    assert end.ext_fields["commitOrRollback"] == str(ROLLBACK)


async def test_refused_half_message_runs_no_transaction(name_server, make_broker):
    """A broker's refusal is raised, and nothing is executed or ended."""
    broker = await make_broker(lambda command: command.response(13, "too bad"))
    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        with pytest.raises(BrokerError, match="too bad"):
            await producer.send_in_transaction(Message("T", b"x"), never)
    assert broker.peer.asked(END) == []


@pytest.mark.parametrize(
    "message", [Message("T", b"x", delay_level=1), Message("%RETRY%G", b"x"), Message("T", b"")]
)
async def test_impossible_half_message_is_refused(name_server, make_broker, message):
    """What cannot be part of a transaction is not sent."""
    broker = await make_broker()
    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        with pytest.raises(IllegalMessageError):
            await producer.send_in_transaction(message, never)
    assert broker.peer.asked(SEND) == []


async def asked_producer(name_server, broker: Broker, check, **options) -> TransactionProducer:
    """Return a started producer that the broker knows."""
    producer = TransactionProducer("G", check, namesrv=name_server.address, topics=["T"], **options)
    await producer.start()
    (heartbeat, *_) = await broker.peer.wait_asked(RequestCode.HEART_BEAT)
    groups = [data.group_name for data in decode_heartbeat(heartbeat.body).producer_data_set]
    assert groups == ["G"]
    return producer


@pytest.mark.parametrize("state", list(TransactionState))
async def test_check_is_answered_with_the_offsets_of_the_question(name_server, make_broker, state):
    """The callback gets the message under its own topic; the answer says that it is one."""
    broker = await make_broker()
    seen: list[MessageExt] = []

    async def check(message: MessageExt) -> TransactionState:
        seen.append(message)
        return state

    producer = await asked_producer(name_server, broker, check)
    broker.ask()
    end = await broker.ended()
    await producer.close()
    (message,) = seen
    assert (message.topic, message.payload(), message.unique_key) == ("T", b"hello", "ID7")
    assert end.is_oneway
    assert end.ext_fields == {
        "producerGroup": "G", "topic": "T", "bname": "a", "commitLogOffset": "1000",
        "tranStateTableOffset": "2", "commitOrRollback": str(state.value),
        "fromTransactionCheck": "true", "msgId": "ID7", "transactionId": "ID7",
    }  # fmt: skip


async def test_check_that_raises_is_unknown(name_server, make_broker, caplog):
    """The broker hears UNKNOWN, and later questions are answered."""
    broker = await make_broker()
    outcomes = iter([ValueError("no database"), TransactionState.COMMIT])

    async def check(message: MessageExt) -> TransactionState:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    producer = await asked_producer(name_server, broker, check, check_concurrency=1)
    broker.ask()
    assert (await broker.ended()).ext_fields["commitOrRollback"] == str(UNKNOWN)
    broker.ask()
    assert (await broker.ended(2)).ext_fields["commitOrRollback"] == str(COMMIT)
    await producer.close()
    assert "no database" in caplog.text


async def test_check_that_raises_cancelled_error_is_unknown(name_server, make_broker):
    """As many such checks as may run side by side, and the next one is answered all the same."""
    broker = await make_broker()
    calls = 0

    async def check(message: MessageExt) -> TransactionState:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise asyncio.CancelledError
        return TransactionState.COMMIT

    producer = await asked_producer(name_server, broker, check, check_concurrency=2)
    try:
        for _ in range(3):
            broker.ask()
        await broker.ended(3)
    finally:
        await producer.close()
    ends = [each.ext_fields["commitOrRollback"] for each in broker.peer.asked(END)]
    assert sorted(ends) == ["0", "0", str(COMMIT)]


async def test_transaction_that_raises_cancelled_error_is_unknown(name_server, make_broker):
    """What a local transaction waited for was cancelled: only `check` can tell the outcome."""
    broker = await make_broker()

    async def execute(message: Message, transaction_id: str) -> TransactionState:
        raise asyncio.CancelledError

    async with TransactionProducer("G", never, namesrv=name_server.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), execute)
        end = await broker.ended()
    assert result.state is TransactionState.UNKNOWN
    assert end.ext_fields["commitOrRollback"] == str(UNKNOWN)


async def test_producer_may_be_closed_by_its_check(name_server, make_broker):
    """The check ends, its answer is sent, and the producer leaves the group."""
    broker = await make_broker()

    async def check(message: MessageExt) -> TransactionState:
        await producer.close()
        return TransactionState.COMMIT

    producer = await asked_producer(name_server, broker, check)
    broker.ask()
    await broker.peer.wait_asked(RequestCode.UNREGISTER_CLIENT)
    await asyncio.wait_for(producer.close(), 5)


async def test_start_that_is_cancelled_leaves_nothing_behind(name_server, make_peer):
    """A name server that does not answer, and a program that waits no longer."""
    silent = await make_peer()
    silent.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda command: None)
    producer = TransactionProducer("G", never, namesrv=silent.address, topics=["T"])
    starting = asyncio.ensure_future(producer.start())
    await silent.wait_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    before = asyncio.all_tasks() - {starting}
    starting.cancel()
    await asyncio.wait([starting])
    names = {task.get_name() for task in asyncio.all_tasks() & before}
    assert not {name for name in names if name == "heartbeat" or name.startswith("transaction")}


async def test_checks_of_other_groups_and_garbage_are_not_answered(name_server, make_broker):
    """A question about another group, or without a message, reaches no callback."""
    broker = await make_broker()
    asked = asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        asked.set()
        return TransactionState.COMMIT

    producer = await asked_producer(name_server, broker, check)
    broker.ask(RECORD.replace(b"PGROUP\x01G", b"PGROUP\x01H"))
    broker.ask(b"garbage")
    broker.ask()
    await broker.ended()
    await producer.close()
    assert len(broker.peer.asked(END)) == 1


async def test_checks_run_side_by_side_up_to_a_limit(name_server, make_broker):
    """So many callbacks run at a time as asked for, the others wait."""
    broker = await make_broker()
    running = peak = 0
    entered, may_leave = asyncio.Semaphore(0), asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        entered.release()
        await may_leave.wait()
        running -= 1
        return TransactionState.COMMIT

    producer = await asked_producer(name_server, broker, check, check_concurrency=2)
    for _ in range(5):
        broker.ask()
    await entered.acquire()
    await entered.acquire()
    may_leave.set()
    await broker.ended(5)
    await producer.close()
    assert peak == 2
