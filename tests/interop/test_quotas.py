"""Stock Java clients of both lines whose user has quotas: they slow down and lose nothing."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop_client import JavaClient
from interop_process import MailboatStandalone

pytestmark = [pytest.mark.interop, pytest.mark.one_line_a_day, pytest.mark.timeout(600)]

SECRET = "planted-secret"
TOPIC = "Quotas"


@pytest.fixture
def serve(
    mailboat_standalone: Callable[..., MailboatStandalone], tmp_path: Path
) -> Callable[..., MailboatStandalone]:
    """Return what starts a process with a user without quotas, and one with them."""

    def start(**quotas: int) -> MailboatStandalone:
        users = tmp_path / "users"
        users.mkdir()
        for name, bounds in (("free", {}), ("bounded", quotas)):
            user = {"username": name, "password": SECRET, "userType": "Super", "quotas": bounds}
            (users / f"{name}.json").write_text(json.dumps(user))
        config = {
            "authenticationEnabled": "true",
            "authUsersPath": str(users),
            "httpMetricsOpen": "true",
        }
        return mailboat_standalone(tmp_path / "store", **config)

    return start


@pytest.fixture
def client_of(tmp_path: Path) -> Iterator[Callable[..., JavaClient]]:
    """Return what starts a JVM whose clients are those of a user."""
    clients: list[JavaClient] = []

    def start(line: str, server: MailboatStandalone, user: str) -> JavaClient:
        home = tmp_path / f"client-{len(clients)}"
        home.mkdir()
        properties = {"interop.accessKey": user, "interop.secretKey": SECRET}
        clients.append(JavaClient(line, server.ready.namesrv, home, properties=properties))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def metrics(server: MailboatStandalone) -> Counter[str]:
    """Return what the broker counts, added up over labels."""
    with urllib.request.urlopen(f"http://{server.ready.http}/metrics") as answer:
        page = answer.read().decode()
    found: Counter[str] = Counter()
    for name, value in re.findall(r"^(mailboat_\w+)(?:\{[^}]*\})? (\S+)$", page, re.MULTILINE):
        found[name] += int(float(value))
    return found


def metrics_once(server: MailboatStandalone, name: str, value: int) -> Counter[str]:
    """Return the metrics once one of them has a value: a page may be a second old."""
    for _ in range(100):
        found = metrics(server)
        if found[name] == value:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{name} is {found[name]}, not {value}")


def send(client: JavaClient, count: int) -> None:
    """Send messages one after the other."""
    encoded = base64.b64encode(b"m").decode()
    events = client.call("send", topic=TOPIC, body=encoded, group="producer", count=count)
    assert sum(event["event"] == "sent" for event in events) == count


def keys(file: Path) -> Counter[str]:
    """Return the keys in the first column of a file."""
    return Counter(text.split("\t")[0] for text in file.read_text().splitlines())


def test_a_producer_that_waits_sends_at_the_rate_of_the_quota(
    line: str, serve: Callable[..., MailboatStandalone], client_of: Callable[..., JavaClient]
) -> None:
    """No send fails, and none is tried again."""
    server = serve(publishMessagesPerSecond=50)
    client = client_of(line, server, "bounded")
    send(client, 50)
    begin_s = time.monotonic()
    send(client, 200)
    taken_s = time.monotonic() - begin_s
    # What came back to the bucket between the two takes a second off at most.
    assert 2.9 <= taken_s < 8.0
    found = metrics_once(server, "mailboat_messages_in_total", 250)
    assert found["mailboat_user_quota_refused_total"] == 0
    assert found["mailboat_user_quota_delayed_total"] > 100


def test_a_producer_that_does_not_wait_is_told_and_sends_again(
    line: str,
    serve: Callable[..., MailboatStandalone],
    client_of: Callable[..., JavaClient],
    tmp_path: Path,
) -> None:
    """What is refused is not stored: each message is there once, at the rate of the quota."""
    server = serve(publishMessagesPerSecond=100)
    client = client_of(line, server, "bounded")
    send(client, 1)
    file = tmp_path / "acknowledged"
    begin_s = time.monotonic()
    events = client.call("produce", topic=TOPIC, group="flood", count=600, file=file)
    taken_s = time.monotonic() - begin_s
    [produced] = [event for event in events if event["event"] == "produced"]
    assert (produced["acknowledged"], produced["unknown"]) == (600, 0)
    assert produced["refused"] > 0
    assert 4.9 <= taken_s < 15.0
    assert keys(file) == Counter({f"m-{number}": 1 for number in range(600)})
    refused = produced["refused"]
    found = metrics_once(server, "mailboat_user_quota_refused_total", refused)
    assert found["mailboat_messages_in_total"] == 601


def test_a_push_consumer_reads_at_the_rate_of_the_quota_without_a_storm(
    line: str,
    serve: Callable[..., MailboatStandalone],
    client_of: Callable[..., JavaClient],
    tmp_path: Path,
) -> None:
    """Every message comes once; its pulls wait at the broker, so there are few of them."""
    server = serve(fetchMessagesPerSecond=100)
    free = client_of(line, server, "free")
    free.call("produce", topic=TOPIC, group="flood", count=800, file=tmp_path / "sent")
    client = client_of(line, server, "bounded")
    file = tmp_path / "received"
    call = client.start("drain", topic=TOPIC, group="readers", file=file)
    call.wait_done()
    client.call("await_places", handle=call.number, count=1)
    begin_s = time.monotonic()
    client.call("await_places", handle=call.number, count=800)
    taken_s = time.monotonic() - begin_s
    # The first hundred come at once, and are noticed a little later.
    assert 6.5 <= taken_s < 20.0
    found = metrics_once(server, "mailboat_messages_out_total", 800)
    client.call("stop", handle=call.number)
    assert keys(file) == keys(tmp_path / "sent")
    assert found["mailboat_user_quota_refused_total"] == 0
    requests = (
        found["mailboat_pulls_found_total"]
        + found["mailboat_pulls_empty_total"]
        + found["mailboat_user_quota_delayed_total"]
    )
    print(f"{line}: {requests} pulls at most in {taken_s:.1f} s")
    # Answers of a tenth of a second's worth, and each pull that waits is counted a second time.
    assert requests <= 25 * (taken_s + 1)


@pytest.mark.parametrize("quotas", [{"heldPulls": 1}, {"connections": 1}])
def test_consumers_that_are_refused_ask_seldom(
    line: str,
    serve: Callable[..., MailboatStandalone],
    client_of: Callable[..., JavaClient],
    tmp_path: Path,
    quotas: dict[str, int],
) -> None:
    """No storm of requests, nor of connections: some seconds between two for each queue."""
    server = serve(**quotas)
    free = client_of(line, server, "free")
    free.call("produce", topic=TOPIC, group="flood", count=100, file=tmp_path / "sent")
    queues = len({text.split("\t")[2] for text in (tmp_path / "sent").read_text().splitlines()})
    assert queues > 1
    clients = [client_of(line, server, "bounded") for _ in range(2)]
    for number, client in enumerate(clients):
        file = tmp_path / f"received-{number}"
        client.start("drain", topic=TOPIC, group=f"readers-{number}", file=file).wait_done()
    time.sleep(3)
    before = metrics(server)["mailboat_user_quota_refused_total"]
    begin_s = time.monotonic()
    time.sleep(10)
    count = metrics(server)["mailboat_user_quota_refused_total"] - before
    taken_s = time.monotonic() - begin_s
    print(f"{line} {quotas}: {count} refusals in {taken_s:.1f} s, {queues} queues")
    assert before + count > 0
    # Each client has the queues of the topic and one of its retry topic: about one a second each.
    assert count <= 2 * (queues + 1) * (taken_s + 2)
