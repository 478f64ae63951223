"""Our clients and commands against a guarded broker with its guarded name server."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from cli_shell import until
from every_request import OPTIONS, use_everything

from mailboat.cli import main
from mailboat.client import (
    Admin,
    ClientSecurity,
    ClientTls,
    ConsumeFromWhere,
    Credentials,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    StartPoint,
    rebalance,
    refusals,
)
from mailboat.config import load_settings
from mailboat.errors import BrokerError
from mailboat.model.topic import TopicConfig
from mailboat.node import Node
from mailboat.testing.cluster import SMALL_STORE

ROOT = ClientSecurity(Credentials("root", "root-secret"))
BOB = ClientSecurity(Credentials("bob", "bob-secret"))
LOCAL = {
    "bindAddress": "127.0.0.1",
    "namesrvBindAddress": "127.0.0.1",
    "listenPort": "0",
    "namesrvListenPort": "0",
    "httpPort": "-1",
}
FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)


class Guarded:
    """A name server and a broker in this process that ask everybody who they are."""

    def __init__(self, folder: Path, **more: str) -> None:
        """Keep store and users below a folder; there is a Super user `root`."""
        self._users = folder / "users"
        self._users.mkdir()
        first = {"username": "root", "password": "root-secret"}
        guard = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": json.dumps(first),
            "authUsersPath": str(self._users),
            "storePathRootDir": str(folder / "store"),
        }
        overrides = {**SMALL_STORE, **LOCAL, **OPTIONS, **guard, **more}
        self.node = Node(load_settings("standalone", overrides=overrides))

    @property
    def namesrv(self) -> str:
        """Where clients begin."""
        return self.node.addresses()["namesrv"]

    def set_bob(self, **rules: list[str]) -> None:
        """Give user bob these rights and no other, as a Secret that is mounted anew."""
        entries = [
            {"resource": resource.replace("_", ":"), "actions": actions, "decision": "Allow"}
            for resource, actions in rules.items()
        ]
        record = {"username": "bob", "password": "bob-secret", "userType": "Normal"}
        if entries:
            record["policies"] = [{"policyType": "Custom", "entries": entries}]
        new = self._users / ".new"
        new.write_text(json.dumps(record))
        new.rename(self._users / "bob.json")


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """Run one, with a user bob that has no rights, and topic T."""
    guarded = Guarded(tmp_path)
    guarded.set_bob()
    await guarded.node.start()
    try:
        async with Admin(namesrv=guarded.namesrv, security=ROOT) as admin:
            await admin.topics.create(TopicConfig("T", read_queue_nums=2, write_queue_nums=2))
        yield guarded
    finally:
        await guarded.node.shutdown()


async def test_the_whole_client_works_for_a_super_user(guarded: Guarded) -> None:
    """What is asked and done is the same as without a guard."""
    await use_everything(guarded.namesrv, ROOT)


async def test_the_whole_client_works_by_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against ports that take nothing else; a command finds its way by the environment alone."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    trust, chain, key = (str(tmp_path / name) for name in ("ca.pem", "tls.crt", "tls.key"))
    authority.cert_pem.write_to_path(trust)
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    tls = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": chain,
        "tls.server.keyPath": key,
        "tls.enable": "true",
        "tls.client.trustCertPath": trust,
    }
    guarded = Guarded(tmp_path, **tls)
    await guarded.node.start()
    try:
        security = ClientSecurity(ROOT.credentials, ClientTls(trust_cert_path=trust))
        await use_everything(guarded.namesrv, security)
        for name, value in {
            "ACCESS_KEY": "root",
            "SECRET_KEY": "root-secret",
            "TLS_ENABLE": "true",
            "TLS_CLIENT_TRUST_CERT_PATH": trust,
        }.items():
            monkeypatch.setenv(f"MAILBOAT_{name}", value)
        assert await asyncio.to_thread(run_command, guarded.namesrv, "topic", "list") == 0
        assert "T" in capsys.readouterr().out.split()
        words = (guarded.namesrv, "topic", "list", "--no-tls")
        assert await asyncio.to_thread(run_command, *words) == 1
        monkeypatch.delenv("MAILBOAT_TLS_CLIENT_TRUST_CERT_PATH")
        assert await asyncio.to_thread(run_command, guarded.namesrv, "topic", "list") == 1
        assert "its certificate is not trusted" in capsys.readouterr().err
    finally:
        await guarded.node.shutdown()


@pytest.mark.parametrize(
    "security",
    [
        ClientSecurity(),
        ClientSecurity(Credentials("root", "wrong")),
        ClientSecurity(Credentials("stranger", "root-secret")),
        BOB,
    ],
    ids=["unsigned", "wrong secret", "unknown", "without rights"],
)
async def test_a_producer_that_is_refused_learns_why(
    guarded: Guarded, security: ClientSecurity
) -> None:
    """At once, with the server's words; nothing is stored."""
    async with Producer("P", namesrv=guarded.namesrv, security=security) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.code == 16
    assert caught.value.remark
    assert guarded.node.broker is not None
    assert guarded.node.broker.store.commit_log.end == 0


async def test_a_producer_without_its_topic_learns_that_nobody_made_it(guarded: Guarded) -> None:
    """A right to send to it does not make it, and the topic of defaults says nothing to anybody."""
    guarded.set_bob(Topic_New=["Pub"])
    sentence = "there is no topic New, .*Topic:TBW102.* no matched policies; have the topic created"
    async with Producer("P", namesrv=guarded.namesrv, security=BOB) as producer:
        async with asyncio.timeout(20):
            while True:
                with pytest.raises(BrokerError) as caught:
                    await producer.send(Message("New", b"x"))
                if "Topic:New" not in caught.value.remark:
                    break
    assert caught.value.code == 16
    assert re.search(sentence, caught.value.remark)
    assert refusals.is_denied(caught.value)


async def test_a_consumer_that_is_refused_says_so_and_goes_on_once_it_may(
    guarded: Guarded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks seldom meanwhile, and needs no restart."""
    monkeypatch.setattr(rebalance, "REBALANCE_INTERVAL_S", 0.5)
    monkeypatch.setattr(refusals, "REFUSED_PAUSE_S", 0.5)
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def keep(messages: list[MessageExt]) -> None:
        for message in messages:
            received.put_nowait(message.payload())

    async with Producer("P", namesrv=guarded.namesrv, security=ROOT) as producer:
        await producer.send(Message("T", b"x"))
    consumer = PushConsumer("G", namesrv=guarded.namesrv, security=BOB, start_point=FIRST)
    consumer.subscribe("T", "*", keep)
    with caplog.at_level(logging.WARNING, "mailboat.client"):
        async with consumer:

            async def is_told() -> bool:
                return "rebalance topic=T group=G" in caplog.text

            await until(is_told)
            told = [
                record.getMessage()
                for record in caplog.records
                if record.name == "mailboat.client.refusals"
            ]
            assert any("User:bob has no permission to access Topic:T" in line for line in told)
            subjects = [line.partition(": CODE")[0] for line in told]
            assert len(subjects) == len(set(subjects))
            guarded.set_bob(Topic_T=["Sub"], Group_G=["Sub"])
            async with asyncio.timeout(60):
                assert await received.get() == b"x"


def run_command(namesrv: str, *words: str) -> int:
    """Run a command in this thread and return its exit code."""
    return main([*words, "-n", namesrv])


async def test_commands_prove_who_they_are(
    guarded: Guarded,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the environment or tools.yml; a refusal says who asked and what is missing."""
    tools = tmp_path / "tools.yml"
    tools.write_text("accessKey: bob\nsecretKey: bob-secret\n")
    listing = (guarded.namesrv, "topic", "list")
    assert await asyncio.to_thread(run_command, *listing) == 1
    error = capsys.readouterr().err
    assert "refused with NO_PERMISSION (16): username cannot be null." in error
    assert "the request was not signed: --access-key" in error
    assert error.count("\n") == 1
    words = (guarded.namesrv, "topic", "create", "U", "--acl-file", str(tools))
    assert await asyncio.to_thread(run_command, *words) == 1
    error = capsys.readouterr().err
    assert "User:bob has no permission to access" in error
    assert "it was signed as bob" in error
    assert error.count("\n") == 1
    monkeypatch.setenv("MAILBOAT_ACCESS_KEY", "root")
    monkeypatch.setenv("MAILBOAT_SECRET_KEY", "root-secret")
    assert await asyncio.to_thread(run_command, *listing) == 0
    assert "T" in capsys.readouterr().out.split()
