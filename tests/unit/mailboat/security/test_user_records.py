"""One user as files have it."""

import json
from typing import Any

import pytest

from mailboat.errors import IllegalUserError
from mailboat.security.access import Action, Need, ResourceKind
from mailboat.security.quotas import Quotas
from mailboat.security.user_records import (
    NAME_MAX,
    PASSWORD_MAX,
    USER_FILE_MAX_BYTES,
    decode_user,
    decode_users,
    encode_users,
)

SECRET = "planted-secret"
UNTIL_MS = 1_767_323_045_000
"""2026-01-02T03:04:05Z, as `date -d … +%s` has it."""


def content(**fields: Any) -> bytes:
    """Write a file with one user."""
    return json.dumps({"username": "orders", "password": SECRET, **fields}).encode()


def policies(**fields: Any) -> list[dict[str, Any]]:
    """Write a policy with one entry."""
    entry = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow", **fields}
    return [{"entries": [entry]}]


def test_the_shortest_file() -> None:
    """A Normal user without rules, who may come in."""
    user = decode_user(content()).user(0)
    assert (user.name, user.secrets) == ("orders", (SECRET.encode(),))
    assert not user.is_super
    assert user.is_enabled
    need = Need(ResourceKind.TOPIC, "a", frozenset({Action.PUB}))
    assert user.rules.refusal(need, "10.0.0.1") == "no matched policies"


def test_the_state_of_a_file_has_a_name() -> None:
    """It comes with the user, and is kept where the user is."""
    record = decode_user(content(revision="u-7"))
    assert record.user(0).revision == "u-7"
    assert decode_users(encode_users([record]))["orders"] == record
    assert decode_user(content()).user(0).revision == ""
    with pytest.raises(IllegalUserError):
        decode_user(content(revision="x" * 256))


def test_all_words() -> None:
    """Capital letters do not matter, as in RocketMQ."""
    user = decode_user(
        content(
            userType="super",
            userStatus="DISABLE",
            policies=policies(sourceIps=["10.0.0.0/8"], actions=["Pub", "sub"]),
        )
    ).user(0)
    assert user.is_super
    assert not user.is_enabled
    need = Need(ResourceKind.TOPIC, "a", frozenset({Action.SUB}))
    assert user.rules.refusal(need, "10.0.0.1") is None
    assert user.rules.refusal(need, "11.0.0.1") == "no matched policies"


def test_a_previous_password_is_valid_until_its_time() -> None:
    """Not at that moment any more; without a time as long as it stands there."""
    previous = {"password": "before", "validUntil": "2026-01-02T04:04:05+01:00"}
    record = decode_user(content(previousPassword=previous))
    assert record.user(UNTIL_MS - 1).secrets == (SECRET.encode(), b"before")
    assert record.user(UNTIL_MS).secrets == (SECRET.encode(),)
    record = decode_user(content(previousPassword={"password": "before"}))
    assert record.user(UNTIL_MS).secrets == (SECRET.encode(), b"before")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"username": ""}, "blank"),
        ({"username": "a b"}, "a name of a user"),
        ({"username": "a\n"}, "a name of a user"),
        ({"username": "n" * (NAME_MAX + 1)}, "a name of a user"),
        ({"password": " "}, "password can not be blank"),
        ({"password": "p" * (PASSWORD_MAX + 1)}, "at most"),
        ({"password": 12345678}, "Expected `str`"),
        ({"pasword": SECRET}, "unknown field"),
        ({"userType": "Admin"}, "user type"),
        ({"userStatus": "on"}, "user status"),
        ({"previousPassword": {"password": ""}}, "blank"),
        ({"previousPassword": {"password": SECRET, "validUntil": "tomorrow"}}, "RFC3339"),
        (
            {"previousPassword": {"password": SECRET, "validUntil": "2026-01-02T03:04:05"}},
            "timezone",
        ),
        ({"policies": policies(resource="Topic:a.b")}, "illegal character"),
        ({"policies": policies(actions=["Publish"])}, "Publish is none of"),
        ({"policies": policies(actions=[])}, "The actions is empty"),
        ({"policies": policies(decision="")}, "The decision is null"),
        ({"policies": policies(sourceIps=["10.0.0.*"])}, "The source ip is invalid"),
        ({"policies": policies(sourceIp="10.0.0.1")}, "unknown field"),
        ({"policies": [{"policyType": "Other", "entries": []}]}, "policy type"),
        ({"policies": [{}]}, "missing required field"),
    ],
)
def test_bad_files(fields: dict[str, Any], reason: str) -> None:
    """Each is refused with a sentence that shows no secret."""
    with pytest.raises(IllegalUserError, match=reason) as caught:
        decode_user(content(**fields))
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"username":"a"}', b"\xff", b"[" * 100_000, content()[:-1] + b",}"],
)
def test_no_json(text: bytes) -> None:
    """Whatever it is, it is refused."""
    with pytest.raises(IllegalUserError):
        decode_user(text)


def test_a_file_has_a_limit() -> None:
    """Also where the rest of it is blanks."""
    assert decode_user(content().ljust(USER_FILE_MAX_BYTES)).name == "orders"
    with pytest.raises(IllegalUserError, match="more than"):
        decode_user(content().ljust(USER_FILE_MAX_BYTES + 1))


def test_users_are_written_as_they_are_read() -> None:
    """All of a user comes back, in RocketMQ's words."""
    first = decode_user(
        content(
            previousPassword={"password": "before", "validUntil": "2026-01-02T03:04:05Z"},
            userType="Super",
            userStatus="disable",
            policies=[
                {
                    "policyType": "Default",
                    "entries": [
                        {"resource": "*", "actions": ["All"], "decision": "Deny"},
                        {
                            "resource": "Group:g*",
                            "actions": ["Sub", "Get"],
                            "sourceIps": ["10.0.0.1"],
                            "decision": "Allow",
                        },
                    ],
                }
            ],
        )
    )
    second = decode_user(content(username="another"))
    text = encode_users([first, second])
    assert [user["username"] for user in json.loads(text)["users"]] == ["another", "orders"]
    back = decode_users(text)
    assert back.keys() == {"orders", "another"}
    assert back["orders"].rules.entries == first.rules.entries
    assert back["orders"].previous == first.previous
    assert back["orders"].user(0).secrets == (SECRET.encode(), b"before")
    assert back["orders"].is_super
    assert not back["orders"].is_enabled
    assert encode_users(back.values()) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"users":[],"version":2}', "version 2"),
        (b'{"users":[{"username":"a","password":"p"},{"username":"a","password":"q"}]}', "twice"),
        (b'{"users":[{"username":"a","password":""}]}', "user a: password can not be blank"),
    ],
)
def test_bad_files_of_users(text: bytes, reason: str) -> None:
    """What another version wrote is not half understood."""
    with pytest.raises(IllegalUserError, match=reason):
        decode_users(text)


def test_no_secret_is_shown() -> None:
    """Neither of a record nor of a user."""
    record = decode_user(content(previousPassword={"password": SECRET}))
    assert SECRET not in repr(record)
    assert SECRET not in repr(record.user(0))


def test_quotas_come_with_the_user_and_are_kept() -> None:
    """What is not bounded is not written."""
    record = decode_user(content(quotas={"connections": 3, "publishBytesPerSecond": 1048576}))
    assert record.user(0).quotas == Quotas(connections=3, publish_bytes_per_second=1048576)
    assert decode_users(encode_users([record]))["orders"] == record
    assert decode_user(content(quotas={})).user(0).quotas is None
    assert b"quotas" not in encode_users([decode_user(content())])


def test_a_quota_of_a_later_version_stops_nothing() -> None:
    """A word that is not known is an error elsewhere: it may be what shuts somebody out."""
    record = decode_user(content(quotas={"zebras": 1, "topics": 0}))
    assert record.quotas == Quotas(topics=0)
    assert record.unknown_quotas == ("zebras",)
    with pytest.raises(IllegalUserError):
        decode_user(content(zebras=1))


@pytest.mark.parametrize("quotas", [[], "1", 1, {"connections": 0}, {"topics": "many"}])
def test_wrong_quotas(quotas: Any) -> None:
    """Refused as a whole, with a text that names them and shows no secret."""
    with pytest.raises(IllegalUserError, match="quotas") as caught:
        decode_user(content(quotas=quotas))
    assert SECRET not in str(caught.value)
