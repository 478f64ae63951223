"""The stock Go, C++ and JavaScript clients sign at a broker that lets nobody in who does not.

Each has a signature of its own: Go signs the fields and its access key, C++ and JavaScript a field
`OnsChannel` besides, and C++ writes numbers as texts. What they need is what Java clients need.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop_client import CppClient, DrivenClient, Event, GoClient, JavaClientError, JsClient, User
from interop_jars import InteropUnavailableError
from interop_process import MailboatStandalone
from interop_scenarios import body

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CLIENTS: dict[str, Callable[[str, Path, User | None], DrivenClient]] = {
    "go": GoClient,
    "cpp": CppClient,
    "js": JsClient,
}
TOPIC = "Signed"
TEXT = "gr\u00fc\u00df\u4f60"
SECRET = "planted-\u00fc-secret"
RULES = (("Topic:Signed", ["Pub", "Sub"]), ("Group:G-Signed", ["Sub"]))
STRANGERS = {
    "anonymous": None,
    "wrong secret": ("shop", "another-secret"),
    "unknown": ("nobody", SECRET),
    "without rules": ("idle", SECRET),
}

Start = Callable[[str, User | None], DrivenClient]


def _user(name: str, kind: str, *policies: dict[str, Any]) -> str:
    return json.dumps(
        {"username": name, "password": SECRET, "userType": kind, "policies": list(policies)}
    )


@pytest.fixture
def server(
    mailboat_standalone: Callable[..., MailboatStandalone], tmp_path: Path
) -> MailboatStandalone:
    """A locked process with a topic, and a user that may use it."""
    users = tmp_path / "users"
    users.mkdir()
    entries = [
        {"resource": resource, "actions": actions, "decision": "Allow"}
        for resource, actions in RULES
    ]
    (users / "root.json").write_text(_user("root", "Super"))
    (users / "shop.json").write_text(_user("shop", "Normal", {"entries": entries}))
    (users / "idle.json").write_text(_user("idle", "Normal"))
    process = mailboat_standalone(
        tmp_path / "store",
        authenticationEnabled="true",
        authorizationEnabled="true",
        authUsersPath=str(users),
    )
    _command(process, "topic", "create", TOPIC, "--read-queues", "2", "--write-queues", "2")
    return process


@pytest.fixture
def start(
    server: MailboatStandalone,
    interop_unavailable: Callable[[InteropUnavailableError], None],
    tmp_path: Path,
) -> Iterator[Start]:
    """Return what starts a process with clients of a kind that sign as a user."""
    clients: list[DrivenClient] = []

    def start(kind: str, user: User | None) -> DrivenClient:
        home = tmp_path / f"{kind}-{len(clients)}"
        home.mkdir()
        try:
            clients.append(CLIENTS[kind](server.ready.namesrv, home, user))
        except InteropUnavailableError as error:
            interop_unavailable(error)
        return clients[-1]

    yield start
    for client in clients:
        client.kill()


def _command(server: MailboatStandalone, *words: str) -> str:
    """Run a command as root and return what it says."""
    command = [sys.executable, "-m", "mailboat.cli", *words, "--namesrv", server.ready.namesrv]
    user = {"MAILBOAT_ACCESS_KEY": "root", "MAILBOAT_SECRET_KEY": SECRET}
    ended = subprocess.run(
        command, check=True, capture_output=True, timeout=60, env=os.environ | user, text=True
    )
    return ended.stdout


def _send(client: DrivenClient, kind: str, text: str, **params: Any) -> list[Event]:
    if kind == "go":
        encoded = base64.b64encode(text.encode()).decode()
        return client.call("send", topic=TOPIC, body=encoded, exact="true", **params)
    return client.call("send", topic=TOPIC, body=text, **params)


def _stored(server: MailboatStandalone) -> int:
    """Return how many messages the topic has."""
    queues = json.loads(_command(server, "topic", "show", TOPIC, "--json"))["queues"]
    return sum(queue["max_offset"] for queue in queues)


@pytest.mark.parametrize("kind", CLIENTS)
def test_who_signs_and_may_gets_everything(
    start: Start, server: MailboatStandalone, kind: str
) -> None:
    """Sends and receives, also what failed once and so was sent back."""
    client = start(kind, ("shop", SECRET))
    # The retry topic is made with the first member, and the C++ client looks for its route when it
    # starts. It sends nothing back of what was there before.
    first = client.start("push", topic=TOPIC, group="G-Signed")
    first.wait_done()
    client.call("stop", handle=first.number)
    consumer = client.start("push", topic=TOPIC, group="G-Signed", failKeys="k2", fail=1)
    consumer.wait_done()
    for number in range(4):
        (sent,) = _send(client, kind, f"{TEXT}{number}", keys=f"k{number}", tags="red")
        assert sent["status"] == 0
    messages = consumer.wait_messages(5)
    assert sorted((body(m), m["keys"], int(m["reconsumeTimes"] > 0)) for m in messages) == sorted(
        [(f"{TEXT}{number}", f"k{number}", 0) for number in range(4)] + [(f"{TEXT}2", "k2", 1)]
    )
    assert _stored(server) == 4


def test_a_transaction_is_signed_to_its_end(start: Start) -> None:
    """The second half of a send, and the answer to the broker's question."""
    client = start("go", ("shop", SECRET))
    encoded = base64.b64encode(TEXT.encode()).decode()
    client.start(
        "transaction",
        topic=TOPIC,
        group="P-Signed",
        body=encoded,
        exact="true",
        local="COMMIT_MESSAGE",
    ).wait_done()
    consumer = client.start("push", topic=TOPIC, group="G-Signed")
    consumer.wait_done()
    (message,) = consumer.wait_messages(1)
    assert body(message) == TEXT


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_leaves_nothing(
    start: Start, server: MailboatStandalone, kind: str, stranger: str
) -> None:
    """The send fails in the client, and nothing of it is stored."""
    client = start(kind, STRANGERS[stranger])
    with pytest.raises(JavaClientError):
        _send(client, kind, TEXT)
    assert _stored(server) == 0
