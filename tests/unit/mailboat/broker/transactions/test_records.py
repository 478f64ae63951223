"""The records of transactions, as RocketMQ 5.3.3 makes and reads them."""

import pytest

from mailboat.broker.stored_message import stored_form
from mailboat.broker.transactions import records
from mailboat.broker.transactions.check_request import check_request
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.properties import decode_properties
from mailboat.model.record import decode_record
from mailboat.model.sys_flag import COMPRESSED, COMPRESSION_ZLIB
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.store.message_inner import MessageInner

HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")
V6_HOST = bytes(15) + b"\x01" + (10911).to_bytes(4, "big")
SENT = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1", "TAGS": "TagA", "KEYS": "k1 k2"}


def _sent(properties: dict[str, str], sys_flag: int = 0x4) -> MessageInner:
    text = stored_form(properties)
    return MessageInner("orders", 3, b"body", text, 1, "U1", None, 9, sys_flag, 1_000, HOST)


def _half(sys_flag: int = 0, born_host: bytes = HOST, **properties: str) -> MessageExt:
    known = SENT | {"REAL_TOPIC": "orders", "REAL_QID": "3", "__transactionId__": "U1"}
    return MessageExt(
        "RMQ_SYS_TRANS_HALF_TOPIC", b"body", 0, 17, 5_000, 300, 9, sys_flag, 77, 1_000, born_host,
        2_000, HOST, 0, 0, known | properties,
    )  # fmt: skip


def test_a_half_message_keeps_where_it_belongs() -> None:
    """Topic and queue move into REAL_TOPIC and REAL_QID, the transaction bits go, others stay."""
    message = records.half_message(_sent(SENT, 0x4 | COMPRESSED | COMPRESSION_ZLIB), SENT)
    assert (message.topic, message.queue_id) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert message.sys_flag == COMPRESSED | COMPRESSION_ZLIB
    assert decode_properties(message.properties.decode()) == SENT | {
        "REAL_TOPIC": "orders",
        "REAL_QID": "3",
        "__transactionId__": "U1",
    }


@pytest.mark.parametrize(("name", "value"), [("PGROUP", ""), ("DELAY", "3")])
def test_a_half_message_that_nobody_could_end_rightly_is_refused(name: str, value: str) -> None:
    """Without a group nobody could be asked; delayed, RocketMQ loses it."""
    properties = SENT | {name: value}
    with pytest.raises(BrokerError, match=name) as error:
        records.half_message(_sent(properties), properties)
    assert error.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_committed_message_is_the_one_that_was_sent() -> None:
    """sysFlag has the commit bit, the half's offset is kept, and no trace of the half topic."""
    message = records.committed_message(_half(COMPRESSED), 3, 0)
    assert (message.topic, message.queue_id, message.body) == ("orders", 3, b"body")
    assert message.sys_flag == COMPRESSED | 0x8
    assert message.prepared_transaction_offset == 5_000
    assert (message.unique_key, message.keys) == ("U1", "k1 k2")
    assert message.tags_code == 2598919  # Java's hash of "TagA"
    properties = decode_properties(message.properties.decode())
    assert properties.keys() == {"PGROUP", "UNIQ_KEY", "TAGS", "KEYS", "__transactionId__"}
    checked = records.committed_message(_half(), 3, 2)
    assert decode_properties(checked.properties.decode())["TRANSACTION_CHECK_TIMES"] == "2"


def test_op_records_are_those_of_rocketmq() -> None:
    """Tag d, offsets joined by commas; one alone has none, which RocketMQ 4 reads as well."""
    ((named, one),) = records.op_messages([17], 4096, 1_000, HOST)
    assert (named, one.topic, one.queue_id, one.body) == (
        [17], "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"17"
    )  # fmt: skip
    assert decode_properties(one.properties.decode()) == {"TAGS": "d"}
    assert one.tags_code == ord("d")
    parts = list(records.op_messages(range(100, 112), 16, 1_000, HOST))
    assert [record.body for _, record in parts] == [
        b"100,101,102,103", b"104,105,106,107", b"108,109,110,111"
    ]  # fmt: skip
    assert [named[0] for named, _ in parts] == [100, 104, 108]


@pytest.mark.parametrize(
    ("body", "tag", "ended"),
    [
        (b"17", "d", [17]),
        (b"17,18,", "d", [17, 18]),
        (b"17,x,,-1,19", "d", [17, 19]),
        (b"17", "other", []),
    ],
)
def test_op_records_of_others_are_read(body: bytes, tag: str, ended: list[int]) -> None:
    """RocketMQ 5 ends its lists with a comma, RocketMQ 4 writes one number."""
    record = _half()
    record.body, record.properties = body, {"TAGS": tag}
    assert records.ended_offsets(record) == ended


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 6.0), ("30", 30.0), ("0", 0.0), ("-1", 6.0), ("x", 6.0)]
)
def test_immunity_is_in_seconds(text: str | None, seconds: float) -> None:
    """What is no number counts as none, as in RocketMQ."""
    half = _half() if text is None else _half(CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    assert records.immunity_s(half, 6.0) == seconds


@pytest.mark.parametrize(("sys_flag", "born_host"), [(0x301, HOST), (0x10, V6_HOST)])
def test_a_question_carries_the_message_as_the_producer_knows_it(
    sys_flag: int, born_host: bytes
) -> None:
    """Offsets of the half message, topic and queue of the real one, PGROUP, the count of checks."""
    half = _half(sys_flag, born_host)
    command = check_request(half, 3, "broker-a")
    assert (command.code, command.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    assert command.ext_fields == {
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
        "tranStateTableOffset": "17",
        "commitLogOffset": "5000",
        "msgId": "U1",
        "transactionId": "U1",
        "offsetMsgId": "0A00000100002A9F0000000000001388",
        "bname": "broker-a",
    }
    message, end = decode_record(command.body, verify=False)
    assert end == len(command.body)
    assert (message.topic, message.queue_id, message.body) == ("orders", 3, b"body")
    assert (message.queue_offset, message.physical_offset) == (17, 5_000)
    assert (message.sys_flag, message.flag, message.body_crc) == (sys_flag, 9, 77)
    assert (message.born_host, message.born_timestamp_ms) == (born_host, 1_000)
    assert message.properties == half.properties | {"TRANSACTION_CHECK_TIMES": "3"}


def test_a_question_about_a_long_topic_uses_the_second_format() -> None:
    """A topic of more than 127 bytes takes two bytes of length."""
    half = _half(REAL_TOPIC="t" * 200)
    message, _ = decode_record(check_request(half, 1, "b").body, verify=False)
    assert message.topic == "t" * 200
