"""The real mqadmin of release 5.5 makes users and gives them rules in a guarded mailboat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop_process import MailboatStandalone
from mqadmin_tools import MqAdmin, Printed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

LINE = "5.5.0"
CLUSTER = "DefaultCluster"
ROOT_PASSWORD = "root-password"
PLANTED = "planted-secret"


@dataclass
class Tools:
    """mqadmin as the Super user and as a user that it has made, and what mailboat wrote."""

    root: MqAdmin
    orders: MqAdmin
    broker: str
    log: Path
    printed: list[Printed]

    def ok(self, *args: str) -> Printed:
        """Run a command of the Super user that has to succeed."""
        printed = self.root.run(*args)
        assert not printed.failed, printed.text
        self.printed.append(printed)
        return printed

    def refused(self, *args: str) -> Printed:
        """Run one that has to fail."""
        printed = self.root.run(*args)
        assert printed.failed, printed.text
        self.printed.append(printed)
        return printed


def _admin(namesrv: str, home: Path, access_key: str, secret_key: str) -> MqAdmin:
    (home / "conf").mkdir(parents=True)
    # tools.yml is where mqadmin looks for credentials; YAML takes JSON.
    credentials = json.dumps({"accessKey": access_key, "secretKey": secret_key})
    (home / "conf" / "tools.yml").write_text(credentials)
    return MqAdmin(LINE, namesrv, home)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """A guarded mailboat, and mqadmin as two users of it."""
    folder = tmp_path_factory.mktemp("users")
    config = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": "root", "password": ROOT_PASSWORD}),
    }
    process = MailboatStandalone(folder / "data", folder / "mailboat.out", config)
    ready = process.start()
    try:
        root = _admin(ready.namesrv, folder / "root", "root", ROOT_PASSWORD)
        try:
            orders = _admin(ready.namesrv, folder / "orders", "orders", PLANTED)
            try:
                yield Tools(root, orders, ready.broker, folder / "mailboat.out", [])
            finally:
                orders.close()
        finally:
            root.close()
    finally:
        process.close()


def test_users_and_rules(tools: Tools) -> None:
    """Each command of the ten requests, and what a user may do after them."""
    tools.ok("createUser", "-c", CLUSTER, "-u", "orders", "-p", PLANTED, "-t", "Normal")
    [row] = tools.ok("getUser", "-c", CLUSTER, "-u", "orders").rows("#")
    assert [row[0], row[-2], row[-1]] == ["orders", "Normal", "enable"]
    rows = tools.ok("listUser", "-b", tools.broker).rows("#")
    assert {"orders", "root"} <= {row[0] for row in rows}
    tools.ok("updateTopic", "-c", CLUSTER, "-t", "T", "-r", "4", "-w", "4")

    def send() -> Printed:
        return tools.orders.run("sendMessage", "-t", "T", "-p", "message")

    assert "SEND_OK" not in send().text
    tools.ok("createAcl", "-c", CLUSTER, "-s", "User:orders", "-r", "Topic:T*,Group:*",
             "-a", "Pub,Sub", "-i", "127.0.0.0/8,::1", "-d", "Allow")  # fmt: skip
    shown = tools.ok("getAcl", "-c", CLUSTER, "-s", "User:orders").text
    for word in ("Topic:T*", "Group:*", "Pub", "Sub", "127.0.0.0/8", "::1", "Allow"):
        assert word in shown
    assert "SEND_OK" in send().text
    tools.ok("updateAcl", "-c", CLUSTER, "-s", "User:orders", "-r", "Topic:T", "-a", "Pub",
             "-d", "Deny")  # fmt: skip
    assert "SEND_OK" not in send().text
    assert "Topic:T" in tools.ok("listAcl", "-c", CLUSTER, "-s", "orders", "-r", "Topic:").text
    tools.ok("deleteAcl", "-c", CLUSTER, "-s", "User:orders", "-r", "Topic:T")
    assert "SEND_OK" in send().text
    tools.ok("updateUser", "-c", CLUSTER, "-u", "orders", "-s", "disable")
    assert "SEND_OK" not in send().text
    tools.ok("updateUser", "-c", CLUSTER, "-u", "orders", "-p", "another-one")
    tools.ok("deleteUser", "-c", CLUSTER, "-u", "orders")
    assert "orders" not in tools.ok("listUser", "-b", tools.broker).text
    for printed in tools.printed:
        assert PLANTED not in printed.text
        assert ROOT_PASSWORD not in printed.text
    log = tools.log.read_text()
    assert PLANTED not in log
    assert ROOT_PASSWORD not in log


def test_what_is_refused_is_told(tools: Tools) -> None:
    """In RocketMQ's words and with its codes."""
    tools.ok("createUser", "-c", CLUSTER, "-u", "second", "-p", PLANTED)
    printed = tools.refused("createUser", "-c", CLUSTER, "-u", "second", "-p", PLANTED)
    assert printed.code == 16
    assert "The user is existed" in printed.text
    printed = tools.refused("updateUser", "-c", CLUSTER, "-u", "nobody", "-p", PLANTED)
    assert printed.code == 16
    assert "The user is not exist" in printed.text
    printed = tools.refused("createAcl", "-c", CLUSTER, "-s", "User:nobody", "-r", "Topic:T",
                            "-a", "Pub", "-d", "Allow")  # fmt: skip
    assert printed.code == 16
    assert "The subject of User:nobody is not exist." in printed.text
    printed = tools.refused("createAcl", "-c", CLUSTER, "-s", "User:second", "-r", "Topic:T",
                            "-a", "Pub", "-i", "10.0.0.*", "-d", "Allow")  # fmt: skip
    assert printed.code == 16
    assert "The source ip is invalid." in printed.text
