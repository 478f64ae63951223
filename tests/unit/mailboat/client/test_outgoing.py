import os
import zlib

import lz4.frame
import pytest
import zstandard

from mailboat.client.outgoing import Compression, Outgoing, prepare_batch, prepare_message
from mailboat.errors import ConfigError, IllegalMessageError
from mailboat.model.batch import decode_batch
from mailboat.model.message import Message
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.message_queue import MessageQueue
from mailboat.model.properties import decode_properties

QUEUE = MessageQueue("T", "broker-a", 3)


@pytest.fixture
def keys() -> UniqKeyGenerator:
    """Return a generator of unique keys."""
    return UniqKeyGenerator(bytes((10, 0, 0, 1)))


def properties_of(outgoing: Outgoing) -> dict[str, str]:
    """Return the properties that a request carries."""
    return decode_properties(outgoing.to_command(QUEUE).ext_fields["i"])


def test_fields_of_a_send(keys: UniqKeyGenerator):
    """A message travels as code 310 with the one-letter fields that Java sends."""
    outgoing = prepare_message(Message("T", b"hello", "a", "k1", {"p": "v"}, flag=7), "G", keys)
    command = outgoing.to_command(QUEUE)
    fields = dict(command.ext_fields)
    born_ms, properties = int(fields.pop("g")), decode_properties(fields.pop("i"))
    assert (command.code, command.body, command.flag) == (310, b"hello", 0)
    assert fields == {
        "a": "G", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "h": "7", "j": "0",
        "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip
    assert born_ms > 1_700_000_000_000
    assert properties == {
        "p": "v", "TAGS": "a", "KEYS": "k1", "WAIT": "true", "UNIQ_KEY": outgoing.message_id,
    }  # fmt: skip
    assert len(outgoing.message_id) == 32


def test_oneway_sets_the_bit(keys: UniqKeyGenerator):
    """A one-way send says so, or the broker would answer it."""
    outgoing = prepare_message(Message("T", b"hello"), "G", keys)
    assert outgoing.to_command(QUEUE, oneway=True).flag == 2


def test_own_unique_key_is_kept(keys: UniqKeyGenerator):
    """A message that is sent again with its id keeps it."""
    outgoing = prepare_message(Message("T", b"x", properties={"UNIQ_KEY": "ID1"}), "G", keys)
    assert outgoing.message_id == properties_of(outgoing)["UNIQ_KEY"] == "ID1"


def test_body_above_4096_bytes_is_compressed(keys: UniqKeyGenerator):
    """4097 bytes travel as zlib with the sysFlag 769 that Java sends; 4096 travel as they are."""
    large = prepare_message(Message("T", b"x" * 4097), "G", keys)
    assert zlib.decompress(large.body) == b"x" * 4097
    assert large.fields["f"] == "769"
    small = prepare_message(Message("T", b"x" * 4096), "G", keys)
    assert (small.body, small.fields["f"]) == (b"x" * 4096, "0")


def test_body_that_does_not_shrink_stays(keys: UniqKeyGenerator):
    """Random bytes travel as they are instead of growing."""
    body = os.urandom(8192)
    outgoing = prepare_message(Message("T", body), "G", keys)
    assert (outgoing.body, outgoing.fields["f"]) == (body, "0")


def test_retry_counts_travel_in_the_header(keys: UniqKeyGenerator):
    """A send to a retry topic tells its counts in fields j and l, not as properties."""
    properties = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16"}
    outgoing = prepare_message(Message("%RETRY%G", b"x", properties=properties), "G", keys)
    assert (outgoing.fields["j"], outgoing.fields["l"]) == ("3", "16")
    assert not properties.keys() & properties_of(outgoing).keys()


def test_too_many_properties_are_refused(keys: UniqKeyGenerator):
    """Properties above 32767 bytes are refused, counted in bytes and not in characters."""
    with pytest.raises(IllegalMessageError, match="32767"):
        prepare_message(Message("T", b"x", properties={"p": "x" * 32768}), "G", keys)
    with pytest.raises(IllegalMessageError, match="32767"):
        prepare_message(Message("T", b"x", properties={"p": "\u00e4" * 20000}), "G", keys)


def test_batch_items_have_their_own_properties(keys: UniqKeyGenerator):
    """A batch is code 320 with m=true, WAIT alone in its header, and an id for each message."""
    messages = [Message("T", b"b1", "TagA"), Message("T", b"b2", keys="k", flag=5)]
    outgoing = prepare_batch(messages, "G", keys)
    command = outgoing.to_command(QUEUE)
    assert (command.code, command.ext_fields["m"]) == (320, "true")
    assert properties_of(outgoing) == {"WAIT": "true"}
    first, second = decode_batch(command.body)
    ids = outgoing.message_id.split(",")
    assert len(set(ids)) == 2
    assert (first[:2], second[:2]) == ((0, b"b1"), (5, b"b2"))
    assert decode_properties(first[2].decode()) == {
        "TAGS": "TagA", "WAIT": "true", "UNIQ_KEY": ids[0],
    }  # fmt: skip
    assert decode_properties(second[2].decode())["UNIQ_KEY"] == ids[1]


def test_batch_above_4_mib_is_refused(keys: UniqKeyGenerator):
    """Messages that are fine one by one are refused as a batch that no broker takes."""
    messages = [Message("T", bytes(3 * 1024 * 1024))] * 2
    with pytest.raises(IllegalMessageError, match="smaller batches"):
        prepare_batch(messages, "G", keys)


def test_batch_of_very_many_messages_is_refused(keys: UniqKeyGenerator):
    """The answer to it would have no room for their ids."""
    with pytest.raises(IllegalMessageError, match="at most 1900 messages"):
        prepare_batch([Message("T", b"x")] * 1901, "G", keys)


@pytest.mark.parametrize(
    ("name", "sys_flag", "unpack"),
    [
        ("zlib", 0x301, zlib.decompress),
        ("lz4", 0x101, lz4.frame.decompress),
        ("zstd", 0x201, lambda body: zstandard.ZstdDecompressor().decompress(body)),
    ],
)
def test_codec_is_the_producers_choice(keys: UniqKeyGenerator, name, sys_flag, unpack):
    """The chosen codec is used above the chosen size, and sysFlag names it."""
    chosen = Compression(name, above_bytes=100)
    small = prepare_message(Message("T", b"x" * 100), "G", keys, chosen)
    large = prepare_message(Message("T", b"x" * 101), "G", keys, chosen)
    assert (small.fields["f"], small.body) == ("0", b"x" * 100)
    assert large.fields["f"] == str(sys_flag)
    assert unpack(large.body) == b"x" * 101


@pytest.mark.parametrize(
    ("name", "level", "pack"),
    [
        ("zlib", None, lambda body: zlib.compress(body, 5)),
        ("zlib", 9, lambda body: zlib.compress(body, 9)),
        ("zstd", None, lambda body: zstandard.ZstdCompressor(5).compress(body)),
        ("zstd", 19, lambda body: zstandard.ZstdCompressor(19).compress(body)),
    ],
)
def test_level_is_the_codecs(keys: UniqKeyGenerator, name: str, level, pack):
    """The level goes to the codec as it is; RocketMQ's 5 is the level for who names none."""
    text = b" ".join(b"%d bottles of beer on wall %d" % (i, i * i % 97) for i in range(3000))
    outgoing = prepare_message(Message("T", text), "G", keys, Compression(name, level))
    assert outgoing.body == pack(text)


def test_unknown_codec_is_refused():
    """A codec that no client reads is refused when the producer is made."""
    with pytest.raises(ConfigError, match="zlib, lz4, zstd"):
        Compression("snappy")


def test_delay_travels_as_a_property(keys: UniqKeyGenerator):
    """The level is the property that RocketMQ reads; none is sent for messages without delay."""
    assert (
        properties_of(prepare_message(Message("T", b"x", delay_level=3), "G", keys))["DELAY"] == "3"
    )
    assert "DELAY" not in properties_of(prepare_message(Message("T", b"x"), "G", keys))
