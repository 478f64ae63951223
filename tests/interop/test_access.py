"""Who may do what, as stock Java clients meet it: mailboat beside the real brokers as judges.

RocketMQ and mailboat get the same accounts (plain_acl.yml of release 4.9, users and rules of 5.5
made by the real mqadmin), and the same clients of both lines come as everybody. Who gets in has to
be the same; what those hear who do not is RocketMQ 5's code, 16, where 4.9 says 1. Routes come from
name servers of RocketMQ, which ask nobody who he is: what is compared are the brokers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from certificates import Authority
from interop_client import JavaClient, JavaClientError
from interop_jars import CLIENT_LINES
from interop_process import MailboatStandalone
from interop_servers import REGISTRATION_TIMEOUT_S, start_java_broker
from interop_wire import brokers_of, wait_until
from mqadmin_tools import MqAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SECRET = "12345678"
TOPIC = "Letters"
GROUP = "interop-pull"
"""The group of the harness's pulls."""

WHO: Mapping[str, tuple[str, str] | None] = {
    "anonymous": None,
    "wrong key": ("producer", "87654321"),
    "unknown": ("stranger", SECRET),
    "nothing": ("nothing", SECRET),
    "producer": ("producer", SECRET),
    "consumer": ("consumer", SECRET),
    "root": ("rootroot", SECRET),
}
ALLOWED = {("producer", "send"), ("consumer", "pull"), ("root", "send"), ("root", "pull")}
PLAIN_ACL = f"""\
accounts:
- accessKey: rootroot
  secretKey: "{SECRET}"
  admin: true
- accessKey: producer
  secretKey: "{SECRET}"
  admin: false
  topicPerms:
  - {TOPIC}=PUB
- accessKey: consumer
  secretKey: "{SECRET}"
  admin: false
  topicPerms:
  - {TOPIC}=SUB
  groupPerms:
  - {GROUP}=SUB
- accessKey: nothing
  secretKey: "{SECRET}"
  admin: false
"""
AUTH_OF_5: dict[str, object] = {
    "authenticationEnabled": "true",
    "authenticationProvider": (
        "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"
    ),
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationEnabled": "true",
    "authorizationProvider": (
        "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider"
    ),
    "authorizationMetadataProvider": (
        "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "initAuthenticationUser": json.dumps({"username": "rootroot", "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": "rootroot", "secretKey": SECRET}
    ),
}


def outcomes(
    namesrv: str, home: Path, line: str, properties: Mapping[str, object]
) -> dict[tuple[str, str], int]:
    """Have everybody send and pull by clients of a line; return the codes, 0 for what went."""
    found = {}
    for who, keys in WHO.items():
        own = dict(properties)
        if keys is not None:
            own |= {"interop.accessKey": keys[0], "interop.secretKey": keys[1]}
        folder = home / f"{line}-{who.replace(' ', '-')}"
        folder.mkdir(parents=True)
        client = JavaClient(line, namesrv, folder, properties=own)
        try:
            body = base64.b64encode(who.encode()).decode()
            for action, params in (
                ("send", {"group": "cash", "body": body, "broker": "broker-java", "queue": 0}),
                ("pull", {"queue": 0}),
            ):
                try:
                    client.call(action, topic=TOPIC, **params)
                except JavaClientError as error:
                    found[who, action] = error.code or -1
                else:
                    found[who, action] = 0
        finally:
            client.close()
    return found


def make_topic(namesrv: str, home: Path, line: str, properties: Mapping[str, object]) -> None:
    """Make the topic, as root."""
    home.mkdir(parents=True)
    keys = {"interop.accessKey": "rootroot", "interop.secretKey": SECRET}
    client = JavaClient(line, namesrv, home, properties={**properties, **keys})
    try:
        client.call("create_topic", topic=TOPIC, queues=1)
    finally:
        client.close()


def check(found: dict[tuple[str, str], int], refusal: int) -> None:
    """Look whether those and only those got in who may, and what the others were told."""
    expected = {
        (who, action): 0 if (who, action) in ALLOWED else refusal
        for who in WHO
        for action in ("send", "pull")
    }
    assert found == expected


@pytest.fixture
def started(
    mailboat_standalone: Callable[..., MailboatStandalone], tmp_path: Path
) -> Callable[..., MailboatStandalone]:
    """Return what starts a mailboat whose broker has the name of RocketMQ's."""

    def start(namesrv: str, **config: object) -> MailboatStandalone:
        name = {"brokerName": "broker-java", "namesrvAddr": namesrv}
        server = mailboat_standalone(tmp_path / "store", **name, **config)
        ours = {0: server.ready.broker}
        wait_until(
            lambda: brokers_of(namesrv, "broker-java") == ours,
            REGISTRATION_TIMEOUT_S,
            "it is registered",
        )
        return server

    return start


def test_accounts_of_4_9(
    java_classpath: Callable[[str, str], str],
    java_namesrv: Callable[[str], str],
    started: Callable[..., MailboatStandalone],
    tmp_path: Path,
) -> None:
    """One plain_acl.yml for RocketMQ 4.9.7 and for mailboat, also by TLS."""
    java_classpath("server", "4.9.7")
    home = tmp_path / "java"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    pair = Authority(tmp_path / "certificates").issue("127.0.0.1")
    of_java, of_ours = java_namesrv("4.9.7"), java_namesrv("5.5.0")
    with ExitStack() as stack:
        config = {"aclEnable": "true"}
        broker = start_java_broker("4.9.7", home, home / "store", of_java, config=config)
        stack.callback(broker.kill)
        tls = {
            "tls.server.mode": "permissive",
            "tls.server.certPath": pair.certificate,
            "tls.server.keyPath": pair.key,
        }
        started(of_ours, aclEnable="true", plainAclFile=file, **tls)
        make_topic(of_java, tmp_path / "topic-java", "4.9.8", {})
        make_topic(of_ours, tmp_path / "topic", "4.9.8", {})
        check(outcomes(of_java, tmp_path / "of-java", "4.9.8", {}), 1)
        for line in CLIENT_LINES:
            check(outcomes(of_ours, tmp_path / "plain", line, {}), 16)
        by_tls = {"tls.enable": "true"}
        check(outcomes(of_ours, tmp_path / "tls", "4.9.8", by_tls), 16)


def test_users_of_5_5(
    java_classpath: Callable[[str, str], str],
    java_namesrv: Callable[[str], str],
    started: Callable[..., MailboatStandalone],
    tmp_path: Path,
) -> None:
    """The same users and rules, made by the real mqadmin in RocketMQ 5.5.0 and in mailboat."""
    java_classpath("server", "5.5.0")
    of_java, of_ours = java_namesrv("5.5.0"), java_namesrv("4.9.7")
    with ExitStack() as stack:
        home = tmp_path / "java"
        broker = start_java_broker("5.5.0", home, home / "store", of_java, config=AUTH_OF_5)
        stack.callback(broker.kill)
        ours = {key: AUTH_OF_5[key] for key in AUTH_OF_5 if "Provider" not in key}
        server = started(of_ours, **ours)
        for number, (namesrv, address) in enumerate(
            ((of_java, broker.address), (of_ours, server.ready.broker))
        ):
            _make_users(namesrv, address, tmp_path / f"admin-{number}")
            make_topic(namesrv, tmp_path / f"topic-{number}", "5.5.0", {})
        check(outcomes(of_java, tmp_path / "of-java", "5.5.0", {}), 16)
        for line in CLIENT_LINES:
            check(outcomes(of_ours, tmp_path / "ours", line, {}), 16)


def _make_users(namesrv: str, broker: str, home: Path) -> None:
    """Make the users and their rules by mqadmin."""
    (home / "conf").mkdir(parents=True)
    keys = {"accessKey": "rootroot", "secretKey": SECRET}
    (home / "conf" / "tools.yml").write_text(json.dumps(keys))
    admin = MqAdmin("5.5.0", namesrv, home)
    try:
        for name in ("producer", "consumer", "nothing"):
            made = admin.run("createUser", "-b", broker, "-u", name, "-p", SECRET, "-t", "Normal")
            assert not made.failed, made.text
        for name, resource, action in (
            ("producer", f"Topic:{TOPIC}", "Pub"),
            ("consumer", f"Topic:{TOPIC},Group:{GROUP}", "Sub"),
        ):
            words = ["-s", f"User:{name}", "-r", resource, "-a", action, "-d", "Allow"]
            made = admin.run("createAcl", "-b", broker, *words, "-i", "127.0.0.0/8")
            assert not made.failed, made.text
    finally:
        admin.close()
