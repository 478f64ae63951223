import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mailboat.errors import CorruptRecordError
from mailboat.model import compiled
from mailboat.model.tags import java_hash
from mailboat_spark.records import (
    HEAD_BORN_MS,
    HEAD_FLAG,
    HEAD_QUEUE_OFFSET,
    HEAD_RECONSUME_TIMES,
    HEAD_STORE_MS,
    OffsetRun,
    RawRows,
    decode_body,
    property_marker,
    property_of,
)

FOREVER = 2**62


@pytest.fixture(autouse=True, params=["compiled", "python"])
def kind_of_loop(request):
    """Decode with the compiled core, and with its definition in Python."""
    if request.param == "compiled" and compiled.decode_rows is None:
        pytest.skip("the compiled core is not installed")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(compiled, "decode_rows", None)
        yield


KINDS = [
    {},
    {"with_crc": False},
    {"is_v6": True},
    {"is_v6": True, "with_crc": False},
    {"topic": b"t" * 200},
    {"topic": b"t" * 200, "is_v6": True},
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_is_decoded(make_record, kind):
    """v1 and v2, IPv4 and IPv6, with and without the record checksum: the same fields come out."""
    body = make_record(
        7, b"\x00\xffbody", properties=b"k\x01v\x02TAGS\x01x\x02", flag=5, born_ms=11, store_ms=12,
        reconsume_times=3, **kind,
    )  # fmt: skip
    rows = RawRows()
    assert decode_body(body, rows, end=FOREVER).run == OffsetRun(7, 8, 1)
    assert rows.payloads == [b"\x00\xffbody"]
    assert rows.properties[0].startswith(b"k\x01v\x02TAGS\x01x\x02")
    head = rows.heads[0]
    assert head[HEAD_QUEUE_OFFSET] == 7
    assert head[HEAD_FLAG] == 5
    assert head[HEAD_BORN_MS] == 11
    assert head[HEAD_STORE_MS] == 12
    assert head[HEAD_RECONSUME_TIMES] == 3


def test_records_lie_back_to_back(make_record):
    """Records of all kinds follow each other in one answer, and the run tells which came."""
    body = b"".join(make_record(10 + at, b"%d" % at, **kind) for at, kind in enumerate(KINDS))
    rows = RawRows()
    assert decode_body(body, rows, end=FOREVER).run == OffsetRun(10, 16, 6)
    assert rows.payloads == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_an_answer_without_records_is_no_run():
    """No bytes, no rows."""
    assert decode_body(b"", RawRows(), end=FOREVER).run.rows == 0


def test_what_lies_behind_the_end_is_left_out(make_record):
    """A pull may bring more than the batch covers; the rest belongs to the next batch."""
    body = b"".join(make_record(at, b"%d" % at) for at in range(3, 9))
    rows = RawRows()
    assert decode_body(body, rows, end=5).run == OffsetRun(3, 5, 2)
    assert rows.payloads == [b"3", b"4"]


def test_tags_with_the_same_hash_are_told_apart(make_record):
    """Brokers filter by Java's string hash, under which AaAa and BBBB are equal."""
    assert java_hash("AaAa") == java_hash("BBBB")
    body = b"".join(
        make_record(at, b"x", properties=b"TAGS\x01%b\x02" % tag)
        for at, tag in enumerate([b"AaAa", b"BBBB", b"AaAa"])
    )
    rows = RawRows()
    assert decode_body(body, rows, end=FOREVER, tags=frozenset({b"AaAa"})).run == OffsetRun(0, 3, 3)
    assert [head[HEAD_QUEUE_OFFSET] for head in rows.heads] == [0, 2]


def test_a_compressed_payload_comes_out_whole(make_record):
    """sysFlag bit 0 marks zlib, which producers use above 4 KiB."""
    payload = b"mailboat " * 1000
    body = make_record(0, zlib.compress(payload), sys_flag=0x1)
    rows = RawRows()
    decode_body(body, rows, end=FOREVER)
    assert rows.payloads == [payload]


@pytest.mark.parametrize(
    ("stored", "reason"),
    [(b"no zlib", "cannot be read"), (zlib.compress(bytes(17 << 20)), "more than 16777216 bytes")],
    ids=["not-compressed", "grows-without-bound"],
)
def test_a_payload_that_cannot_be_unpacked_is_kept_as_stored(make_record, stored, reason):
    """One odd message must not stop a query for ever: its payload stays as it is, and is noted."""
    body = make_record(6, b"good") + make_record(7, stored, sys_flag=0x1) + make_record(8, b"good")
    rows = RawRows()
    assert decode_body(body, rows, end=FOREVER).run == OffsetRun(6, 9, 3)
    assert rows.payloads == [b"good", stored, b"good"]
    [(queue_offset, text)] = rows.packed
    assert queue_offset == 7
    assert reason in text


@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_byte_is_noticed(make_record, kind):
    """A flipped bit anywhere the checksums cover is an error, not another message."""
    record = make_record(1, b"payload", **kind)
    at_body = record.index(b"payload")
    for place in range(at_body, at_body + 7):
        damaged = bytearray(record)
        damaged[place] ^= 0x10
        with pytest.raises(CorruptRecordError):
            decode_body(bytes(damaged), RawRows(), end=FOREVER)


def test_a_whole_record_checksum_covers_the_head_too(make_record):
    """With the checksum property, changed offsets and timestamps are noticed as well."""
    record = make_record(1, b"payload")
    for place in (*range(12, 88), len(record) - 25, len(record) - 1):
        damaged = bytearray(record)
        damaged[place] ^= 0x01
        with pytest.raises(CorruptRecordError):
            decode_body(bytes(damaged), RawRows(), end=FOREVER)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 200))
def test_a_cut_answer_is_an_error(make_record, cut):
    """A record that is cut short is never half a row."""
    whole = make_record(0) + make_record(1)
    shortened = whole[: max(1, len(whole) - cut)]
    if len(shortened) == len(make_record(0)):
        return
    with pytest.raises(CorruptRecordError):
        decode_body(shortened, RawRows(), end=FOREVER)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), head=st.sampled_from([b"", b"\xda\xa3\x20\xa7"]))
def test_any_bytes_are_decoded_or_refused(data, head):
    """Whatever a peer sends, the only error is the one that says so."""
    body = len(data).to_bytes(4, "big") + head + data if head else data
    try:
        decode_body(body, RawRows(), end=FOREVER)
    except CorruptRecordError:
        return
    assert body == b""


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (b"TAGS\x01a\x02", "TAGS", b"a"),
        (b"x\x01y\x02TAGS\x01a\x02", "TAGS", b"a"),
        (b"x\x01y\x02TAGS\x01a", "TAGS", b"a"),
        (b"MYTAGS\x01b\x02TAGS\x01a\x02", "TAGS", b"a"),
        (b"MYTAGS\x01b\x02", "TAGS", None),
        (b"note\x01see TAGS\x02", "TAGS", None),
        (b"TAGS\x01\x02", "TAGS", None),
        (b"MYTAGS\x01b\x02x\x01y\x02TAGS\x01a\x02", "TAGS", b"a"),
        (b"", "TAGS", None),
    ],
)
def test_one_property_out_of_the_text(text, name, value):
    """A name counts only where a property begins, and an empty value counts as none."""
    assert property_of(text, property_marker(name)) == value
