"""Stock Java clients of both release lines, and mqadmin, by TLS against mailboat."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from certificates import Authority, Pair, for_java
from interop_client import JavaClient, JavaClientError
from interop_process import MailboatStandalone
from mqadmin_tools import MqAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return whom all trust."""
    return Authority(tmp_path / "certificates")


@pytest.fixture
def serve(
    mailboat_standalone: Callable[..., MailboatStandalone], authority: Authority, tmp_path: Path
) -> Callable[..., MailboatStandalone]:
    """Return what starts a process that speaks TLS only, unless told otherwise."""

    def start(**changes: str) -> MailboatStandalone:
        pair = authority.issue("127.0.0.1")
        config = {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(pair.certificate),
            "tls.server.keyPath": str(pair.key),
        }
        return mailboat_standalone(tmp_path / "store", **{**config, **changes})

    return start


def java_properties(folder: Path, authority: Authority, shown: Pair | None) -> dict[str, object]:
    """Return the properties of a client that checks whom it speaks to."""
    file = folder / "tls.properties"
    lines = {
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.trust,
    }
    if shown is not None:
        pair = for_java(shown)
        lines |= {"tls.client.certPath": pair.certificate, "tls.client.keyPath": pair.key}
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return {"tls.enable": "true", "tls.config.file": file}


@pytest.fixture
def client_of(tmp_path: Path) -> Iterator[Callable[..., JavaClient]]:
    """Return what starts a JVM with clients, which end with the test."""
    clients: list[JavaClient] = []

    def start(
        line: str, server: MailboatStandalone, properties: Mapping[str, object]
    ) -> JavaClient:
        home = tmp_path / f"client-{len(clients)}"
        home.mkdir()
        clients.append(JavaClient(line, server.ready.namesrv, home, properties=properties))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def sends(client: JavaClient, topic: str, count: int) -> int:
    """Send messages and return how many a pull finds."""
    for number in range(count):
        encoded = base64.b64encode(b"%d" % number).decode()
        client.call("send", topic=topic, body=encoded, group="producer")
    events = client.call("pull", topic=topic, all="true")
    return sum(event["event"] == "message" for event in events)


def test_java_client_by_tls(
    line: str,
    serve: Callable[..., MailboatStandalone],
    client_of: Callable[..., JavaClient],
    authority: Authority,
    tmp_path: Path,
) -> None:
    """As it is by default, and where it checks the server and shows a certificate."""
    server = serve(
        **{
            "tls.server.need.client.auth": "optional",
            "tls.server.trustCertPath": str(authority.trust),
        }
    )
    assert sends(client_of(line, server, {"tls.enable": "true"}), "Tls", 20) == 20
    shown = authority.issue("client", file="client")
    for number, pair in enumerate((None, shown)):
        properties = java_properties(tmp_path, authority, pair)
        assert sends(client_of(line, server, properties), f"Checked{number}", 5) == 5
    with pytest.raises((JavaClientError, TimeoutError)):
        sends(client_of(line, server, {}), "Plain", 1)


def test_java_client_has_to_show_a_certificate(
    line: str,
    serve: Callable[..., MailboatStandalone],
    client_of: Callable[..., JavaClient],
    authority: Authority,
    tmp_path: Path,
) -> None:
    """One of the authority gets in, one of nobody does not."""
    server = serve(
        **{
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": str(authority.trust),
        }
    )
    shown = authority.issue("client", file="client")
    properties = java_properties(tmp_path, authority, shown)
    assert sends(client_of(line, server, properties), "Mutual", 5) == 5
    with pytest.raises((JavaClientError, TimeoutError)):
        sends(client_of(line, server, {"tls.enable": "true"}), "Nobody", 1)


def test_permissive_server_serves_java_clients_of_both_kinds(
    line: str, serve: Callable[..., MailboatStandalone], client_of: Callable[..., JavaClient]
) -> None:
    """Clients are moved to TLS one by one."""
    server = serve(**{"tls.server.mode": "permissive"})
    for number, properties in enumerate(({}, {"tls.enable": "true"})):
        assert sends(client_of(line, server, properties), f"T{number}", 5) == 5


def test_mqadmin_by_tls(
    line: str, serve: Callable[..., MailboatStandalone], tmp_path: Path
) -> None:
    """It asks name server and broker."""
    server = serve()
    admin = MqAdmin(line, server.ready.namesrv, tmp_path / "mqadmin", {"tls.enable": "true"})
    try:
        printed = admin.run("clusterList")
        assert not printed.failed, printed.text
        assert server.ready.broker in printed.text
        printed = admin.run("updateTopic", "-b", server.ready.broker, "-t", "ByTls")
        assert not printed.failed, printed.text
        assert "ByTls" in admin.run("topicList").text
    finally:
        admin.close()
    plain = MqAdmin(line, server.ready.namesrv, tmp_path / "plain")
    try:
        assert server.ready.broker not in plain.run("clusterList").text
    finally:
        plain.close()
