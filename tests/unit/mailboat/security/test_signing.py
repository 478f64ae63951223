"""Tests of mailboat.security.signing; the contents are written out by the rule of RocketMQ."""

import hmac
from base64 import b64encode

import pytest

from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import SERIALIZE_BINARY, FrameDecoder
from mailboat.security.client_security import Credentials
from mailboat.security.signing import content, is_signed_by, sign, signature

KEY = "rocketmq2"
SECRET = "12345678"
V4_9_3 = 399
V4_9_4 = 401


def mac(text: str, body: bytes = b"", secret: str = SECRET) -> str:
    """Return what has to stand in `Signature` where these values and this body are signed."""
    return b64encode(hmac.new(secret.encode(), text.encode() + body, "sha1").digest()).decode()


def request(
    fields: dict[str, str], body: bytes = b"", *, version: int = V4_9_4, form: int = 0
) -> RemotingCommand:
    """Return a request as it looks after it came over the wire."""
    sent = RemotingCommand(
        12, ext_fields=fields, body=body, version=version, serialize_type=form, language="JAVA"
    )
    return received(sent)


def received(sent: RemotingCommand) -> RemotingCommand:
    """Return what a server reads of a command."""
    (frame,) = FrameDecoder().feed(sent.encode())
    return decode_command(frame)


def test_known_vector() -> None:
    """RFC 2202, case 2: HMAC-SHA1 of a key that is text, here in base64."""
    expected = bytes.fromhex("effcdf6ae5eb2fa2d27416d5f184df9c259a7c79")
    made = signature(b"Jefe", b"what do ya want for nothing?")
    assert made == b64encode(expected).decode() == "7/zfauXrL6LSdBbV8YTfnCWafHk="


def test_values_in_the_order_of_names_then_the_body() -> None:
    """Upper case comes before lower case; the signature itself is no part of it."""
    fields = {"topic": "T", "queueId": "3", "AccessKey": KEY, "Signature": "x", "b": "\u00e9"}
    assert content(fields, b"\x00body") == b"rocketmq2" + b"\xc3\xa9" + b"3" + b"T" + b"\x00body"


@pytest.mark.parametrize("form", [0, SERIALIZE_BINARY])
def test_our_signature_is_the_described_one(form: int) -> None:
    """Signing adds two fields, and whoever reads the request over the wire finds them right."""
    command = RemotingCommand(
        310, ext_fields={"b": "T", "a": "G", "zz": "unknown"}, body=b"hi", serialize_type=form
    )
    sign(command, Credentials(KEY, SECRET))
    signed = KEY + "G" + "T" + "unknown"
    assert command.ext_fields["AccessKey"] == KEY
    assert command.ext_fields["Signature"] == mac(signed, b"hi")
    assert is_signed_by(received(command), (SECRET.encode(),))


def test_a_security_token_is_signed() -> None:
    """It stands between AccessKey and the fields of lower case."""
    command = RemotingCommand(10, ext_fields={"a": "1"})
    sign(command, Credentials(KEY, SECRET, "token"))
    assert command.ext_fields["SecurityToken"] == "token"
    assert command.ext_fields["Signature"] == mac(KEY + "token" + "1")


def test_signing_again_replaces_what_another_signed() -> None:
    """A request that is sent again, or on behalf of another, carries one valid signature."""
    command = RemotingCommand(10, ext_fields={"a": "1"})
    sign(command, Credentials("another", "87654321"))
    sign(command, Credentials(KEY, SECRET))
    assert command.ext_fields == {"a": "1", "AccessKey": KEY, "Signature": mac(KEY + "1")}


def test_the_callers_fields_are_left_alone() -> None:
    """A table that is shared by several requests gets no signature of one of them."""
    shared = {"a": "1"}
    sign(RemotingCommand(10, ext_fields=shared), Credentials(KEY, SECRET))
    assert shared == {"a": "1"}


@pytest.mark.parametrize(
    "change",
    [
        {"b": "U"},
        {"b": "T "},
        {"b": "T\x00"},
        {"c": "more"},
        {"Signature": ""},
        {"Signature": mac(KEY + "T", b"hi") + " "},
        {"Signature": mac(KEY + "T", b"hi").rstrip("=")},
        {"Signature": "\u00e9"},
        {"signature": mac(KEY + "T", b"hi")},
        {"AccessKey": "rocketmq"},
    ],
)
def test_any_change_makes_it_invalid(change: dict[str, str]) -> None:
    """Values, added fields, and signatures that are only nearly the same."""
    fields = {"b": "T", "AccessKey": KEY, "Signature": mac(KEY + "T", b"hi")}
    secrets = (SECRET.encode(),)
    assert is_signed_by(request(fields, b"hi"), secrets)
    assert not is_signed_by(request(fields, b"ho"), secrets)
    assert not is_signed_by(request(fields | change, b"hi"), secrets)


def test_a_missing_signature_is_none() -> None:
    """Even where the user has an empty secret."""
    assert not is_signed_by(request({"AccessKey": KEY}), (SECRET.encode(), b""))
    assert not is_signed_by(request({}), ())


def test_two_secrets() -> None:
    """While a secret is changed, the one of before is good too, and no other."""
    secrets = (b"newSecret", SECRET.encode())
    for secret, is_good in (("newSecret", True), (SECRET, True), ("oldest", False)):
        fields = {"AccessKey": KEY, "Signature": mac(KEY, secret=secret)}
        assert is_signed_by(request(fields), secrets) is is_good


@pytest.mark.parametrize("is_signed", [True, False])
def test_field_of_unique_key_queries_may_be_unsigned(is_signed: bool) -> None:
    """Clients up to 4.9.3 add it behind their signature; nothing else may be added."""
    late = {"_UNIQUE_KEY_QUERY": "true"}
    signed = "T" if not is_signed else "true" + "T"
    fields = {"topic": "T", "AccessKey": KEY, "Signature": mac(KEY + signed), **late}
    assert is_signed_by(request(fields), (SECRET.encode(),))
    assert not is_signed_by(request({**fields, "_UNIQUE": "x"}), (SECRET.encode(),))


def test_nothing_else_has_that_field_unsigned() -> None:
    """A query has no body."""
    fields = {"topic": "T", "AccessKey": KEY, "_UNIQUE_KEY_QUERY": "true"}
    for signed, is_signed in (("T", False), ("true" + "T", True)):
        shown = {**fields, "Signature": mac(KEY + signed + "body")}
        assert is_signed_by(request(shown, b"body"), (SECRET.encode(),)) == is_signed


@pytest.mark.parametrize(("version", "signed"), [(V4_9_3, "T"), (V4_9_4, "true" + "T")])
def test_our_clients_sign_that_field_as_the_release_does(version: int, signed: str) -> None:
    """What claims to be 4.9.3 leaves it out, as brokers of that release do."""
    fields = {"topic": "T", "_UNIQUE_KEY_QUERY": "true"}
    command = RemotingCommand(12, ext_fields=fields, version=version)
    sign(command, Credentials(KEY, SECRET))
    assert command.ext_fields["Signature"] == mac(KEY + signed)
    assert command.ext_fields["_UNIQUE_KEY_QUERY"] == "true"


def test_numbers_are_signed_as_they_were_printed() -> None:
    """Clients that write bare numbers sign their text."""
    header = (
        b'{"code":30,"extFields":{"topic":"T","queueId":3,"isX":true,"none":null,'
        b'"AccessKey":"rocketmq2","Signature":"%s"}}' % mac(KEY + "true" + "3" + "T").encode()
    )
    assert is_signed_by(decode_command((0, header, b"")), (SECRET.encode(),))
