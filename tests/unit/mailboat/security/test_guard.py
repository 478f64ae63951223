"""Tests of mailboat.security.guard."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from mailboat.config.security import SecurityConfig
from mailboat.errors import BrokerError, ConfigError
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.security.audit import PER_S, AuditLog
from mailboat.security.client_security import Credentials
from mailboat.security.guard import (
    FREE_FAILURES,
    NOBODY,
    NOT_AUTHENTICATED,
    PAUSE_MAX_S,
    Guard,
    make_guard,
)
from mailboat.security.needs import broker_rows, pull_needs
from mailboat.security.rules import NO_RULES, PolicyRules, parse_entry
from mailboat.security.signing import sign
from mailboat.security.users import User
from mailboat.testing.virtual_time import VirtualTime

SECRET = "12345678"
PEER = "10.0.0.1"
ROWS = broker_rows("DefaultCluster", lambda _offset: None)


@dataclass(slots=True)
class Users:
    """Users of a test."""

    table: dict[str, User] = field(default_factory=dict)
    revision: int = 0
    on_changed: list[Callable[[], None]] = field(default_factory=list)

    def get(self, access_key: str) -> User | None:
        """Return a user."""
        return self.table.get(access_key)


def user(name: str, *rules: tuple[str, str, str], **more: Any) -> User:
    """Return a user with rules: resource, actions, decision."""
    entries = [
        parse_entry(resource, actions.split(","), [], decision)
        for resource, actions, decision in rules
    ]
    return User(name, (SECRET.encode(),), PolicyRules(entries) if entries else NO_RULES, **more)


@pytest.fixture
def users() -> Users:
    """Return some users."""
    known = [
        user("root", is_super=True),
        user("producer", ("Topic:T", "Pub", "Allow")),
        user("consumer", ("Topic:T", "Sub", "Allow"), ("Group:G", "Sub", "Allow")),
        user("off", ("*", "All", "Allow"), is_enabled=False),
        user("but_t", ("*", "All", "Allow"), ("Topic:T", "Pub", "Deny")),
    ]
    return Users({one.name: one for one in known})


@pytest.fixture
def clock() -> VirtualTime:
    """Return a clock."""
    return VirtualTime()


@pytest.fixture
def guard(users: Users, clock: VirtualTime) -> Guard:
    """Return a guard of a broker."""
    return Guard(users, ROWS, authorizes=True, audit=AuditLog(""), clock=clock.monotonic)


def signed(
    name: str, code: int = Code.SEND_MESSAGE_V2, *, secret: str = SECRET, **fields: str
) -> RemotingCommand:
    """Return a request that somebody signed; without more it is a send to T."""
    command = RemotingCommand.request(code, fields or {"b": "T"})
    if name:
        sign(command, Credentials(name, secret))
    return command


def refusal(guard: Guard, command: RemotingCommand, address: str = PEER) -> str:
    """Return what a peer is told; the request has to be refused."""
    with pytest.raises(BrokerError) as caught:
        guard.check(command, address)
    assert caught.value.code == ResponseCode.NO_PERMISSION
    return caught.value.remark


def test_who_may(guard: Guard) -> None:
    """The user is returned, whoever it is."""
    assert guard.check(signed("producer"), PEER).name == "producer"
    assert guard.check(signed("root"), PEER).name == "root"
    pull = {"topic": "T", "consumerGroup": "G"}
    assert guard.check(signed("consumer", Code.PULL_MESSAGE, **pull), PEER).name == "consumer"


def test_nobody_learns_who_there_is(guard: Guard) -> None:
    """Unknown, disabled and wrongly signed: one text. Only the lack of a name is told."""
    told = {
        refusal(guard, signed("stranger")),
        refusal(guard, signed("off")),
        refusal(guard, signed("producer", secret="wrong")),
        refusal(guard, signed("root", secret="")),
        refusal(guard, signed("off", secret="wrong")),
    }
    assert told == {NOT_AUTHENTICATED}
    assert refusal(guard, signed("")) == NOBODY
    without_key = signed("root")
    del without_key.ext_fields["AccessKey"]
    assert refusal(guard, without_key) == NOBODY
    other_case = signed("root")
    other_case.ext_fields["accesskey"] = other_case.ext_fields.pop("AccessKey")
    assert refusal(guard, other_case) == NOBODY


def test_unknown_users_take_as_long_as_known_ones(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature is computed for each, so that time tells nothing."""
    computed: list[int] = []
    real = __import__("mailboat.security.guard", fromlist=["is_signed_by"]).is_signed_by

    def counted(command: RemotingCommand, secrets: tuple[bytes, ...]) -> bool:
        computed.append(len(secrets))
        return bool(real(command, secrets))

    monkeypatch.setattr("mailboat.security.guard.is_signed_by", counted)
    refusal(guard, signed("stranger"))
    refusal(guard, signed("producer", secret="wrong"))
    assert computed == [1, 1]


def test_rules(guard: Guard) -> None:
    """In RocketMQ's words."""
    assert refusal(guard, signed("consumer")) == (
        "User:consumer has no permission to access Topic:T from 10.0.0.1, no matched policies."
    )
    assert refusal(guard, signed("but_t")) == (
        "User:but_t has no permission to access Topic:T from 10.0.0.1, the decision is deny."
    )
    assert guard.check(signed("but_t", b="U"), PEER).name == "but_t"
    foreign = signed("consumer", Code.PULL_MESSAGE, topic="%RETRY%X", consumerGroup="G")
    assert refusal(guard, foreign) == "retry topic does not match consumer group."


def test_every_need_counts(guard: Guard) -> None:
    """Topic and group, each in either order."""
    for fields in ({"topic": "U", "consumerGroup": "G"}, {"topic": "T", "consumerGroup": "X"}):
        refusal(guard, signed("consumer", Code.QUERY_CONSUMER_OFFSET, **fields))


def test_source_addresses_of_ipv6(users: Users, guard: Guard) -> None:
    """Peers have brackets around them, rules have not."""
    entry = parse_entry("Topic:T", ["Pub"], ["fd00::/8"], "Allow")
    users.table["six"] = User("six", (SECRET.encode(),), PolicyRules([entry]))
    assert guard.check(signed("six"), "[fd00::1]").name == "six"
    refusal(guard, signed("six"), "[fe80::1]")


def test_a_code_without_a_row_is_refused(guard: Guard) -> None:
    """Even to whoever may do everything."""
    assert 999 not in ROWS
    assert refusal(guard, signed("root", 999)) == "authorization context is empty."
    assert guard.authenticate(signed("root", 999), PEER).name == "root"


def test_authentication_alone(users: Users) -> None:
    """Without authorizationEnabled a signature is enough, and nothing less."""
    guard = Guard(users, ROWS, authorizes=False, audit=AuditLog(""))
    assert guard.check(signed("consumer"), PEER).name == "consumer"
    assert refusal(guard, signed("consumer", secret="wrong")) == NOT_AUTHENTICATED
    assert refusal(guard, signed("off")) == NOT_AUTHENTICATED


def test_nothing_is_remembered(users: Users, guard: Guard) -> None:
    """A change counts from the next request on."""
    guard.check(signed("producer"), PEER)
    users.table["producer"] = replace(users.table["producer"], is_enabled=False)
    assert refusal(guard, signed("producer")) == NOT_AUTHENTICATED
    users.table["producer"] = replace(users.table["producer"], is_enabled=True, rules=NO_RULES)
    assert "no matched policies" in refusal(guard, signed("producer"))
    del users.table["producer"]
    assert refusal(guard, signed("producer")) == NOT_AUTHENTICATED


def test_what_has_waited_is_judged_again(users: Users, guard: Guard) -> None:
    """As now, not as when it came."""
    needs = pull_needs("T", "G")
    guard.allow("consumer", needs, Code.PULL_MESSAGE, PEER)
    guard.allow("root", needs, Code.PULL_MESSAGE, PEER)
    for change in ({"is_enabled": False}, {"rules": NO_RULES}):
        former = users.table["consumer"]
        users.table["consumer"] = replace(former, **change)
        with pytest.raises(BrokerError):
            guard.allow("consumer", needs, Code.PULL_MESSAGE, PEER)
        users.table["consumer"] = former
    with pytest.raises(BrokerError):
        guard.allow("producer", needs, Code.PULL_MESSAGE, PEER)
    with pytest.raises(BrokerError):
        guard.allow("", needs, Code.PULL_MESSAGE, PEER)


def test_back_off(guard: Guard, clock: VirtualTime) -> None:
    """After many failures nothing is looked at for a moment; others are not concerned."""
    for _ in range(FREE_FAILURES):
        refusal(guard, signed("producer", secret="wrong"))
    assert guard.check(signed("producer"), PEER).name == "producer"  # It ended the row.
    for _ in range(FREE_FAILURES + 1):
        refusal(guard, signed("producer", secret="wrong"))
    assert refusal(guard, signed("producer")) == NOT_AUTHENTICATED
    assert guard.check(signed("producer"), "10.0.0.2").name == "producer"
    assert guard.check(signed("root"), PEER).name == "root"
    clock.advance(PAUSE_MAX_S)
    assert guard.check(signed("producer"), PEER).name == "producer"


def test_unknown_names_of_one_address_count_together(guard: Guard, clock: VirtualTime) -> None:
    """Making up names gains nothing, and takes nothing from those who are known."""
    for number in range(FREE_FAILURES + 1):
        refusal(guard, signed(f"stranger-{number}"))
    assert guard._back_off.is_paused(PEER, "")
    assert guard.check(signed("producer"), PEER).name == "producer"
    clock.advance(0.2)
    assert not guard._back_off.is_paused(PEER, "")


def test_tables_are_bounded(guard: Guard) -> None:
    """Whoever has many addresses fills no memory."""
    for number in range(5_000):
        refusal(guard, signed("stranger"), f"10.1.{number // 250}.{number % 250}")
    assert len(guard._back_off._rows) <= 4_096
    assert len(guard._lines) <= 1_024


def test_log_lines_cannot_be_forged(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """And made-up names make no more lines than one."""
    caplog.set_level(logging.WARNING)
    for number in range(30):
        refusal(guard, signed(f"x\n2026 root logged in \u2028{number}"))
    assert len(caplog.records) == 1
    assert len(caplog.text.splitlines()) == 1
    assert "unknown user" in caplog.text
    assert SECRET not in caplog.text


def test_audit_log(users: Users, tmp_path: Path) -> None:
    """One line of JSON for each refusal and each administrative request."""
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path))
    guard = Guard(users, ROWS, authorizes=True, audit=audit)
    refusal(guard, signed("a\nb\u2028"))
    refusal(guard, signed("producer", secret="wrong"))
    refusal(guard, signed("producer", b="U"))
    guard.check(signed("producer"), PEER)
    guard.check(signed("root", Code.DELETE_TOPIC_IN_BROKER, topic="T"), PEER)
    guard.close()
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    events = [json.loads(line) for line in lines]
    seen = [(event["event"], event["user"], event["request"]) for event in events]
    assert seen == [
        ("refused", "a\nb\u2028", "SEND_MESSAGE_V2"),
        ("refused", "producer", "SEND_MESSAGE_V2"),
        ("refused", "producer", "SEND_MESSAGE_V2"),
        ("allowed", "root", "DELETE_TOPIC_IN_BROKER"),
    ]
    assert [event.get("reason") for event in events] == [
        "unknown user",
        "bad signature",
        "no Pub of Topic:U",
        None,
    ]
    assert all(event["address"] == PEER for event in events)
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(byte < 128 for line in lines for byte in line)
    assert SECRET.encode() not in path.read_bytes()


def test_a_flood_fills_no_disk(tmp_path: Path) -> None:
    """What is left out is counted."""
    clock = VirtualTime()
    audit = AuditLog(str(tmp_path / "audit.log"), clock=clock.monotonic)
    for _ in range(1_000):
        audit.note("refused", user="x" * 5_000)
    clock.advance(1)
    audit.note("refused", user="last")
    audit.close()
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert len(lines) == 201
    assert json.loads(lines[-1])["leftOutBefore"] == 800
    assert max(map(len, lines)) < 400


def test_refusals_crowd_no_change_out_of_the_audit_log(tmp_path: Path) -> None:
    """Strangers that are refused by the thousand hide nothing of what somebody changes."""
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), clock=lambda: 0.0)
    for _ in range(1_000):
        audit.note("refused", user="stranger")
    for _ in range(3):
        audit.note("allowed", user="root")
    audit.close()
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["refused"] * PER_S + ["allowed"] * 3


def test_guards_are_made_where_they_are_asked_for(users: Users, tmp_path: Path) -> None:
    """And where one cannot do its work, nothing starts."""
    assert make_guard(SecurityConfig(), users, ROWS) is None
    for config in (SecurityConfig(authentication_enabled=True), SecurityConfig(acl_enable=True)):
        assert make_guard(config, users, ROWS) is not None
        with pytest.raises(ConfigError, match="no users"):
            make_guard(config, None, ROWS)
    config = SecurityConfig(acl_enable=True, audit_log_path=str(tmp_path / "no" / "folder"))
    with pytest.raises(ConfigError, match="cannot be written"):
        make_guard(config, users, ROWS)
    only_authenticates = make_guard(SecurityConfig(authentication_enabled=True), users, ROWS)
    assert only_authenticates is not None
    only_authenticates.check(signed("consumer"), PEER)
    # ACL 1.0 is both.
    acl = make_guard(SecurityConfig(acl_enable=True), users, ROWS)
    assert acl is not None
    refusal(acl, signed("consumer"))
