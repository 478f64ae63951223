"""Requests 3001-3010 over real sockets, as a guarded broker answers them.

The codes and texts are those of AdminBrokerProcessor, AuthenticationMetadataManagerImpl and
AuthorizationMetadataManagerImpl of RocketMQ 5.3.3, unless a test says why they are others.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import SignedClient, client_of, known_as, pull_fields, send_fields
from raw_client import broker_settings

from mailboat.broker.controller import BrokerController
from mailboat.config.security import SecurityConfig
from mailboat.disk.real import RealDisk
from mailboat.protocol.command import RemotingCommand
from mailboat.security.directory import Directory
from mailboat.testing.faulty_disk import Fault, FaultyDisk

CREATE, UPDATE, DELETE, GET, LIST = range(3001, 3006)
CREATE_ACL, UPDATE_ACL, DELETE_ACL, GET_ACL, LIST_ACL = range(3006, 3011)
PLANTED: Final = "planted-secret"
ROOT: Final = "root-password"


@pytest.fixture
def users(tmp_path: Path) -> Directory:
    """The users of a new broker: a Super one, and one that a file has."""
    folder = tmp_path / "users"
    folder.mkdir()
    filed = {"username": "filed", "password": PLANTED, "policies": [
        {"entries": [{"resource": "Cluster:*", "actions": ["Update", "Get"], "decision": "Allow"}]}
    ]}  # fmt: skip
    (folder / "filed.json").write_text(json.dumps(filed))
    security = SecurityConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=json.dumps({"username": "root", "password": ROOT}),
        auth_users_path=str(folder),
    )
    directory = Directory(security, FaultyDisk(RealDisk()), f"{tmp_path}/store/mailboat/users.json")
    directory.load()
    return directory


@pytest.fixture
async def broker(tmp_path: Path, users: Directory) -> AsyncIterator[BrokerController]:
    """A guarded broker."""
    security = SecurityConfig(authentication_enabled=True, authorization_enabled=True)
    settings = replace(broker_settings(tmp_path / "store"), security=security)
    controller = BrokerController(settings, users=users)
    await controller.start()
    yield controller
    await controller.shutdown()


@pytest.fixture
async def root(broker: BrokerController) -> AsyncIterator[SignedClient]:
    """A client of the Super user."""
    async with client_of(broker, known_as("root", ROOT)) as client:
        yield client


@pytest.fixture
async def normal(broker: BrokerController) -> AsyncIterator[SignedClient]:
    """A client of a Normal user that may change users."""
    async with client_of(broker, known_as("filed", PLANTED)) as client:
        yield client


def body(value: Any) -> bytes:
    """Write a body."""
    return json.dumps(value).encode()


async def create(client: SignedClient, name: str, **info: Any) -> RemotingCommand:
    """Make a user."""
    info.setdefault("password", PLANTED)
    return await client.call(CREATE, {"username": name}, body({"username": name, **info}))


def acl(*entries: dict[str, Any], policy_type: str = "Custom") -> dict[str, Any]:
    """Write rules."""
    return {"policies": [{"policyType": policy_type, "entries": list(entries)}]}


def rule(resource: str, *actions: str, decision: str = "Allow", **more: Any) -> dict[str, Any]:
    """Write one rule."""
    return {"resource": resource, "actions": actions, "decision": decision, **more}


async def test_a_user_is_made_seen_changed_and_removed(root: SignedClient, tmp_path: Path) -> None:
    """No answer has its password; the file has it, for nobody else to read."""
    assert (await create(root, "orders")).code == 0
    answer = await root.ok(GET, {"username": "orders"})
    expected = {"username": "orders", "userType": "Normal", "userStatus": "enable"}
    assert json.loads(answer.body) == expected
    await root.ok(UPDATE, {"username": "orders"}, body({"userStatus": "disable"}))
    answer = await root.ok(LIST, {"filter": "order"})
    assert json.loads(answer.body) == [{**expected, "userStatus": "disable"}]
    answer = await root.ok(LIST)
    assert [user["username"] for user in json.loads(answer.body)] == ["filed", "orders", "root"]
    assert PLANTED.encode() not in answer.body
    file = tmp_path / "store" / "mailboat" / "users.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one["username"] for one in json.loads(file.read_text())["users"]] == ["orders", "root"]
    await root.ok(DELETE, {"username": "orders"})
    answer = await root.ok(GET, {"username": "orders"})
    assert answer.body == b""
    await root.ok(DELETE, {"username": "orders"})
    assert PLANTED not in file.read_text()


async def test_changes_count_with_the_next_request(
    root: SignedClient, broker: BrokerController
) -> None:
    """A password, a status, a rule, and the user itself."""
    await root.make_topic("T")
    await create(root, "orders")
    async with client_of(broker, known_as("orders", PLANTED)) as orders:
        send = (310, send_fields("T"), b"message")
        assert (await orders.call(*send)).code == 16
        allow = body(acl(rule("Topic:T*", "Pub")))
        await root.ok(CREATE_ACL, {"subject": "User:orders"}, allow)
        assert (await orders.call(*send)).code == 0
        deny = body(acl(rule("Topic:T", "Pub", decision="Deny", sourceIps=["127.0.0.0/8"])))
        await root.ok(UPDATE_ACL, {"subject": "User:orders"}, deny)
        refused = await orders.call(*send)
        assert refused.remark == (
            "User:orders has no permission to access Topic:T from 127.0.0.1, the decision is deny."
        )
        await root.ok(DELETE_ACL, {"subject": "User:orders", "resource": "Topic:T"})
        assert (await orders.call(*send)).code == 0
        await root.ok(UPDATE, {"username": "orders"}, body({"password": "another-one"}))
        assert (await orders.call(*send)).code == 16
        orders.credentials = known_as("orders", "another-one")
        assert (await orders.call(*send)).code == 0
        await root.ok(UPDATE, {"username": "orders"}, body({"userStatus": "disable"}))
        assert (await orders.call(*send)).code == 16
        await root.ok(UPDATE, {"username": "orders"}, body({"userStatus": "enable"}))
        assert (await orders.call(*send)).code == 0
        await root.ok(DELETE, {"username": "orders"})
        assert (await orders.call(*send)).code == 16


async def test_a_parked_pull_of_a_removed_user_ends(
    root: SignedClient, broker: BrokerController
) -> None:
    """It hands out nothing that comes after."""
    await root.make_topic("T")
    await create(root, "reader")
    rules = body(acl(rule("Topic:T", "Sub"), rule("Group:G", "Sub")))
    await root.ok(CREATE_ACL, {"subject": "User:reader"}, rules)
    async with client_of(broker, known_as("reader", PLANTED)) as reader:
        fields = pull_fields("T", "G", sysFlag=6, suspendTimeoutMillis=15_000)
        pull = asyncio.create_task(reader.call(11, fields))
        async with asyncio.timeout(10):
            while not len(broker.pull_holds):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        await root.ok(DELETE, {"username": "reader"})
        assert (await pull).code == 16


async def test_rules_are_seen_and_merged(root: SignedClient) -> None:
    """A rule takes the place of that about the same resource, the others stay."""
    await create(root, "orders")
    subject = {"subject": "User:orders"}
    assert (await root.ok(GET_ACL, subject)).body == b""
    first = acl(rule("topic:a", "pub"), rule("Group:g*", "Sub", sourceIps=["10.0.0.1"]))
    first["policies"] += acl(rule("*", "Get"), policy_type="Default")["policies"]
    await root.ok(CREATE_ACL, subject, body({"subject": "User:orders", **first}))
    await root.ok(CREATE_ACL, subject, body(acl(rule("Topic:a", "Sub", decision="deny"))))
    shown = json.loads((await root.ok(GET_ACL, subject)).body)
    assert shown == {
        "subject": "User:orders",
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    rule("Group:g*", "Sub", sourceIps=["10.0.0.1"]) | {"actions": ["Sub"]},
                    rule("Topic:a", decision="Deny", sourceIps=[]) | {"actions": ["Sub"]},
                ],
            },
            {"policyType": "Default", "entries": [rule("*", sourceIps=[]) | {"actions": ["Get"]}]},
        ],
    }
    listed = json.loads((await root.ok(LIST_ACL, {"resourceFilter": "Topic:"})).body)
    assert [one["subject"] for one in listed] == ["User:orders"]
    assert [len(policy["entries"]) for policy in listed[0]["policies"]] == [1]
    listed = json.loads((await root.ok(LIST_ACL, {"subjectFilter": "fil"})).body)
    assert [one["subject"] for one in listed] == ["User:filed"]
    await root.ok(DELETE_ACL, {**subject, "policyType": "Default", "resource": "*"})
    shown = json.loads((await root.ok(GET_ACL, subject)).body)
    assert [policy["policyType"] for policy in shown["policies"]] == ["Custom"]
    await root.ok(DELETE_ACL, subject)
    assert (await root.ok(GET_ACL, subject)).body == b""


NORMAL: Final = {"password": "p"}
RULES: Final = acl(rule("Topic:a", "Pub"))
BAD: Final[list[tuple[int, dict[str, str], Any, int, str]]] = [
    (CREATE, {}, NORMAL, 29, "The username is blank"),
    (CREATE, {"username": "a b"}, NORMAL, 29, "a name of a user has at most"),
    (CREATE, {"username": "new"}, {"username": "root"}, 29, "not that of the request"),
    (CREATE, {"username": "new"}, {}, 16, "password can not be blank"),
    (CREATE, {"username": "new"}, None, 16, "password can not be blank"),
    (CREATE, {"username": "new"}, {**NORMAL, "userType": "Admin"}, 29, "user type"),
    (CREATE, {"username": "new"}, {**NORMAL, "userStatus": "on"}, 29, "user status"),
    (CREATE, {"username": "root"}, NORMAL, 16, "The user is existed"),
    (CREATE, {"username": "filed"}, NORMAL, 16, "The user is existed"),
    (UPDATE, {"username": "new"}, NORMAL, 16, "The user is not exist"),
    (UPDATE, {"username": "new"}, {"username": "root"}, 29, "not that of the request"),
    (UPDATE, {"username": "filed"}, NORMAL, 1, "has the user filed: change it there"),
    (DELETE, {"username": "filed"}, None, 1, "has the user filed: change it there"),
    (DELETE, {"username": " "}, None, 29, "The username is blank"),
    (GET, {}, None, 29, "The username is blank"),
    (CREATE_ACL, {"subject": "User:new"}, RULES, 16, "The subject of User:new is not exist."),
    (CREATE_ACL, {"subject": "root"}, RULES, 16, "The subject is not User:"),
    (CREATE_ACL, {"subject": "User:filed"}, RULES, 1, "change it there"),
    (CREATE_ACL, {"subject": "User:root"}, None, 16, "The policies is empty."),
    (CREATE_ACL, {"subject": "User:root"}, acl(), 16, "The policies is empty."),
    (CREATE_ACL, {"subject": "User:root"}, acl(rule("", "Pub")), 16, "The resource is null."),
    (CREATE_ACL, {"subject": "User:root"}, acl(rule("Topic:a")), 16, "The actions is empty."),
    (
        UPDATE_ACL, {"subject": "User:root"}, acl(rule("Topic:a", "Any")), 16,
        "The actions can not be Any.",
    ),
    (
        UPDATE_ACL, {"subject": "User:root"}, acl(rule("Topic:a", "Pub", decision="")), 16,
        "The decision is null or illegal.",
    ),
    (
        UPDATE_ACL, {"subject": "User:root"}, acl(rule("Topic:a", "Pub", sourceIps=["x"])), 16,
        "The source ip is invalid.",
    ),
    (
        UPDATE_ACL, {"subject": "User:root"}, {"subject": "User:filed", **RULES}, 29,
        "not that of the request",
    ),
    (DELETE_ACL, {"subject": "User:new"}, None, 16, "The subject of User:new is not exist."),
    (DELETE_ACL, {"subject": "User:root"}, None, 16, "The acl is not exist."),
]  # fmt: skip


@pytest.mark.parametrize(("code", "fields", "value", "expected", "remark"), BAD)
async def test_what_is_refused_changes_nothing(
    root: SignedClient,
    users: Directory,
    tmp_path: Path,
    code: int,
    fields: dict[str, str],
    value: Any,
    expected: int,
    remark: str,
) -> None:
    """Neither in memory nor in the file."""
    before = dict(users.records)
    answer = await root.call(code, fields, b"" if value is None else body(value))
    assert answer.code == expected
    assert remark in (answer.remark or "")
    assert users.records == before
    assert not (tmp_path / "store" / "mailboat" / "users.json").exists()


async def test_only_super_users_make_and_change_super_users(
    normal: SignedClient, root: SignedClient, users: Directory
) -> None:
    """Whatever else a Normal user may do to users."""
    answer = await create(normal, "new", userType="Super")
    assert (answer.code, answer.remark) == (
        1,
        "The super user can only be create by super user",
    )
    assert (await create(normal, "new")).code == 0
    by_super = "The super user can only be update by super user"
    for code, name, value, expected in (
        (UPDATE, "new", {"userType": "Super"}, 1),
        (UPDATE, "root", {"password": PLANTED}, 16),
        (DELETE, "root", {}, 16),
    ):
        answer = await normal.call(code, {"username": name}, body(value))
        assert (answer.code, answer.remark) == (expected, by_super)
    answer = await normal.call(CREATE_ACL, {"subject": "User:root"}, body(RULES))
    assert (answer.code, answer.remark) == (16, by_super)
    assert users.records["root"].password == ROOT
    assert (await root.call(UPDATE, {"username": "new"}, body({"userType": "Super"}))).code == 0
    assert users.records["new"].is_super


async def test_who_may_not_update_the_cluster_may_not_ask(
    root: SignedClient, broker: BrokerController
) -> None:
    """Of each of the ten requests."""
    await create(root, "nothing")
    async with client_of(broker, known_as("nothing", PLANTED)) as client:
        for code in range(CREATE, LIST_ACL + 1):
            answer = await client.call(code, {"username": "x", "subject": "User:x"})
            assert answer.code == 16
            assert "has no permission to access Cluster:" in (answer.remark or "")


@pytest.mark.parametrize("call", ["create", "pwrite", "fdatasync", "rename"])
async def test_what_cannot_be_saved_does_not_count(
    root: SignedClient, users: Directory, call: str
) -> None:
    """The disk's refusal is told, and the next try succeeds."""
    disk = users._disk
    assert isinstance(disk, FaultyDisk)
    disk.inject(Fault((call,), 1, 28))
    answer = await create(root, "orders")
    assert answer.code == 1
    assert "the users cannot be saved" in (answer.remark or "")
    assert "orders" not in users.records
    disk.heal()
    assert (await create(root, "orders")).code == 0


async def test_many_changes_at_once_all_count(root: SignedClient, tmp_path: Path) -> None:
    """Each looks at what those before it made."""
    answers = await asyncio.gather(*(create(root, f"user{number}") for number in range(20)))
    assert {answer.code for answer in answers} == {0}
    file = tmp_path / "store" / "mailboat" / "users.json"
    assert len(json.loads(file.read_text())["users"]) == 21


async def test_no_secret_is_told(
    root: SignedClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by answers of any kind nor by the log, whatever is wrong with the request."""
    bodies = [
        body({"username": "orders", "password": PLANTED}),
        b'{"username":"orders","password":"' + PLANTED.encode(),
        b'{"username":"orders","password":["' + PLANTED.encode() + b'"]}',
        b'{"username":"orders","userType":7,"password":"' + PLANTED.encode() + b'"}',
        b'["' + PLANTED.encode() + b'"]',
    ]
    told = []
    with caplog.at_level(logging.DEBUG):
        for code in range(CREATE, LIST_ACL + 1):
            for content in bodies:
                fields = {"username": "orders", "subject": "User:orders"}
                told.append(await root.call(code, fields, content))
        for code in (26, 28, 3004, 3005):
            told.append(await root.call(code, {"username": "filed"}))
    for answer in told:
        shown = repr(answer) + (answer.remark or "") + repr(answer.body) + repr(answer.ext_fields)
        assert PLANTED not in shown
        assert ROOT not in shown
    assert PLANTED not in caplog.text
    assert ROOT not in caplog.text


@pytest.mark.parametrize(("code", "expected"), [(50, 209), (51, 210), (52, 1), (53, 211), (54, 1)])
async def test_plain_acl_is_changed_as_a_file(root: SignedClient, code: int, expected: int) -> None:
    """Requests of version 4 are told so with their own codes, and 54 tells nothing."""
    answer = await root.call(code, {"accessKey": "a", "secretKey": PLANTED, "admin": "true"})
    assert (answer.code, answer.body) == (expected, b"")
    assert "plain_acl.yml has them" in (answer.remark or "")
