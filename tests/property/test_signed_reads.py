"""Signed sends in the compiled core: it takes none that Python would refuse."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from mailboat.errors import MailboatError
from mailboat.model.hosts import encode_host
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import SERIALIZE_BINARY, SERIALIZE_JSON, FrameDecoder, encode_frame
from mailboat.protocol.send_header import guarded_send
from mailboat.security.client_security import Credentials
from mailboat.security.signing import ACCESS_KEY_FIELD, is_signed_by, sign

mailboat_core = pytest.importorskip("mailboat_core", reason="the compiled core is not installed")

SECRETS = (b"the secret of now", "früher".encode())
HERE, ELSEWHERE = encode_host("10.0.0.1", 5000), encode_host("10.0.0.2", 5000)
ALLOWED = {"orders": ("T",), "ünsal": ("T", "U")}
FIELDS = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "UNIQ_KEY\x01K\x02", "j": "0", "k": "false",
}  # fmt: skip
NAMES = st.sampled_from([*FIELDS, "m", "n", "topic", "Signature", "AccessKey", "SecurityToken", "x",
                         "signature", "ä", ""])  # fmt: skip
VALUES = st.sampled_from(["", "T", "U", "0", "orders", "\x01", '"\\/', "\u20ac", "\U0001f680"]) | (
    st.text(max_size=8)
)


def core(host: bytes = HERE) -> Any:
    """Return a core with two topics, and users that may send from one address."""
    rounds = mailboat_core.SendRounds(
        store_host=HERE, broker_name="broker-a", suffix=b"", append_crc=False, with_keys=True,
        holds_answers=False, max_body_bytes=10_000, delays_ms=[], is_guarded=True,
    )  # fmt: skip
    for topic in ("T", "U"):
        rounds.learn(topic, 0, SimpleNamespace(is_removed=False, next_offset=0))
    for user, topics in ALLOWED.items():
        for topic in topics:
            rounds.allow(user.encode(), SECRETS, host, topic.encode())
    return rounds


def taken_bytes(rounds: Any, data: bytes, host: bytes = HERE) -> int:
    """Return how much of a read the core takes."""
    asker = SimpleNamespace(peer_host=host)
    taken, _ = rounds.take([(asker, data)], 0, 1 << 20, 1, 1, True, 4_096)
    (size,) = taken.taken
    assert isinstance(size, int)
    return size


def good(user: str = "orders", secret: bytes = SECRETS[0], **fields: str) -> RemotingCommand:
    """Return a send that its user has signed."""
    command = RemotingCommand.request(310, {**FIELDS, **fields}, b"body")
    sign(command, Credentials(user, secret.decode()))
    return command


def may_be_taken(data: bytes) -> bool:
    """Judge the one frame of a read as Python does."""
    try:
        command = decode_command(FrameDecoder().feed(data)[0])
        fields = command.ext_fields
        topic = guarded_send(command).fields.topic
    except MailboatError:
        return False
    is_allowed = topic in ALLOWED.get(fields.get(ACCESS_KEY_FIELD, ""), ())
    return is_allowed and is_signed_by(command, SECRETS)


def spelled(header: bytes, style: int) -> bytes:
    """Return a JSON header in another spelling."""
    if style == 0:
        return header
    return json.dumps(json.loads(header), ensure_ascii=style == 1).encode()


@settings(deadline=None, max_examples=400)
@given(
    fields=st.dictionaries(NAMES, VALUES, max_size=4),
    user=st.sampled_from([*ALLOWED, "stranger"]),
    secret=st.sampled_from([*SECRETS, b"another"]),
    changes=st.dictionaries(NAMES, VALUES | st.none(), max_size=2),
    cut=st.sampled_from([b"body", b"bod", b"body!", b"Body"]),
    style=st.sampled_from([0, 0, 1, 2, 3]),
)
@example({}, "orders", SECRETS[0], {}, b"body", 0)
@example({"x": ""}, "orders", SECRETS[0], {"x": None}, b"body", 0)
@example({"i": "UNIQ_KEY\x01a\x02"}, "orders", SECRETS[1], {"x": "", "y": ""}, b"body", 3)
def test_what_is_taken_is_signed(
    fields: dict[str, str], user: str, secret: bytes, changes: Any, cut: bytes, style: int
) -> None:
    """Whatever is changed behind the signature, and however it is written."""
    command = good(user, secret, **fields)
    changed = {**command.ext_fields, **changes}
    command.ext_fields = {name: value for name, value in changed.items() if value is not None}
    command.body = cut
    if style == 3:
        command.serialize_type = SERIALIZE_BINARY
    data = command.encode()
    if style < 3:
        _, header, _ = FrameDecoder().feed(data)[0]
        data = encode_frame(SERIALIZE_JSON, spelled(header, style), cut)
    taken = taken_bytes(core(), data)
    event(f"taken: {taken > 0}")
    if taken:
        assert taken == len(data)
        assert may_be_taken(data)


@settings(deadline=None, max_examples=400)
@given(
    places=st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=12)), min_size=1, max_size=3)
)
def test_no_changed_bytes_are_taken_that_python_refuses(places: list[tuple[int, bytes]]) -> None:
    """Bytes put over those of a signed send."""
    data = bytearray(good().encode())
    for place, put in places:
        at = place % len(data)
        data[at : at + len(put)] = put[: len(data) - at]
    if taken_bytes(core(), bytes(data)):
        assert may_be_taken(bytes(data))


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("user", list(ALLOWED))
@pytest.mark.parametrize("secret", SECRETS)
def test_plain_sends_are_taken(user: str, secret: bytes, *, is_binary: bool) -> None:
    """Those of clients, with either secret."""
    command = good(user, secret, i="UNIQ_KEY\x01K\x02KEYS\x01a \u20ac\x02")
    if is_binary:
        command.serialize_type = SERIALIZE_BINARY
    data = command.encode()
    assert may_be_taken(data)
    assert taken_bytes(core(), data * 3) == 3 * len(data)


def rewritten(command: RemotingCommand, old: str, new: str) -> bytes:
    """Return a send with another text in its header."""
    kind, header, body = FrameDecoder().feed(command.encode())[0]
    assert header.count(old.encode()) == 1
    return encode_frame(kind, header.replace(old.encode(), new.encode()), body)


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        ('"x":"11"', '"x":"1","x":"1"'),
        ('"AccessKey":"orders"', '"AccessKey":"orders","AccessKey":""'),
        ('"b":"T"', '"b":"T","b":""'),
    ],
)
def test_fields_that_come_twice_are_not_taken(once: str, twice: str) -> None:
    """Their values one behind the other are what is signed, and one reader has the last one."""
    command = good(x="11")
    assert taken_bytes(core(), command.encode())
    data = rewritten(command, once, twice)
    assert not may_be_taken(data)
    assert taken_bytes(core(), data) == 0


@pytest.mark.parametrize("value", ["5", "true", "{}", '"5"'])
@pytest.mark.parametrize("name", ["x", "m", "n"])
def test_fields_that_are_not_signed_are_not_taken(name: str, value: str) -> None:
    """Whatever kind of value they have."""
    data = rewritten(good(), '"b":"T"', f'"b":"T","{name}":{value}')
    assert not may_be_taken(data)
    assert taken_bytes(core(), data) == 0


def test_grants_end() -> None:
    """For another address, another topic, after they are taken from one, and from all."""
    data = good().encode()
    assert taken_bytes(core(), data, ELSEWHERE) == 0
    assert taken_bytes(core(), good(b="U").encode()) == 0
    rounds = core()
    rounds.withdraw(b"orders", ELSEWHERE)
    rounds.withdraw("ünsal".encode(), HERE)
    assert taken_bytes(rounds, data) == len(data)
    rounds.withdraw(b"orders", HERE)
    assert taken_bytes(rounds, data) == 0
    rounds.allow(b"orders", (b"a new secret",), HERE, b"T")
    assert taken_bytes(rounds, data) == 0
    assert taken_bytes(rounds, new := good(secret=b"a new secret").encode()) == len(new)
    rounds.withdraw_all()
    assert taken_bytes(rounds, new) == 0


def test_grants_are_bounded() -> None:
    """With one more than there may be, all are forgotten, and those that follow hold."""
    rounds = core()
    data = good().encode()
    for number in range(65_536):
        rounds.allow(b"another", SECRETS, HERE, b"%d" % number)
    assert taken_bytes(rounds, data) == 0
    rounds.allow(b"orders", SECRETS, HERE, b"T")
    assert taken_bytes(rounds, data) == len(data)
