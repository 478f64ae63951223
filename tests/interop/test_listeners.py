"""Stock Java clients and mqadmin that come by a listener, and Java name servers that know none."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority
from interop_client import JavaClient
from interop_process import MailboatStandalone
from interop_servers import REGISTRATION_TIMEOUT_S
from interop_wire import brokers_of, wait_until
from mqadmin_tools import MqAdmin

from mailboat.testing.kept_ports import KeptPorts

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BY_TLS = {"tls.enable": "true"}


@pytest.fixture
def ports() -> Iterator[KeptPorts]:
    """Return ports that are free for the test."""
    kept = KeptPorts()
    yield kept
    kept.close()


def test_java_client_comes_by_a_listener(
    line: str,
    mailboat_standalone: Callable[..., MailboatStandalone],
    ports: KeptPorts,
    tmp_path: Path,
) -> None:
    """By TLS, whatever is spoken inside: it is told that door's address, sends and consumes."""
    pair = Authority(tmp_path / "certificates").issue("127.0.0.1", "localhost")
    names, broker = ports.take(), ports.take()
    outside = {"name": "outside", "tls": "enforcing"}
    listener = {**outside, "port": broker, "advertised": f"localhost:{broker}"}
    server = mailboat_standalone(
        tmp_path / "store",
        **{
            "listeners": json.dumps([listener]),
            "namesrvListeners": json.dumps([{**outside, "port": names}]),
            "tls.server.certPath": str(pair.certificate),
            "tls.server.keyPath": str(pair.key),
        },
    )
    client = JavaClient(line, f"127.0.0.1:{names}", tmp_path / "client", properties=BY_TLS)
    try:
        client.call("create_topic", topic="Letters", queues=4)
        body = base64.b64encode(b"from outside").decode()
        client.call("send", topic="Letters", group="post", body=body, count=10)
        events = client.call("pull", topic="Letters", all="true")
        [found] = client.call("cluster")
    finally:
        client.close()
    assert sum(event["event"] == "message" for event in events) == 10
    assert f"localhost:{broker}" in json.dumps(found)
    assert server.ready.broker not in json.dumps(found)
    admin = MqAdmin(line, server.ready.namesrv, tmp_path / "inside")
    try:
        inside = admin.run("clusterList")
    finally:
        admin.close()
    assert server.ready.broker in inside.text
    assert f"localhost:{broker}" not in inside.text


def test_java_name_servers_pass_over_listeners(
    line: str,
    mailboat_standalone: Callable[..., MailboatStandalone],
    java_namesrv: Callable[[str], str],
    ports: KeptPorts,
    tmp_path: Path,
) -> None:
    """A broker with listeners is in their routes as any other."""
    port = ports.take()
    listeners = json.dumps([{"name": "outside", "port": port, "advertised": "192.0.2.7:1"}])
    release = "4.9.7" if line == "4.9.8" else line
    namesrv = java_namesrv(release)
    server = mailboat_standalone(
        tmp_path / "store", listeners=listeners, namesrvAddr=namesrv, brokerName=f"doors-{line}"
    )
    name = f"doors-{line}"
    wait_until(lambda: brokers_of(namesrv, name), REGISTRATION_TIMEOUT_S, "it is registered")
    client = JavaClient(line, namesrv, tmp_path / "client")
    try:
        [found] = client.call("cluster")
    finally:
        client.close()
    assert server.ready.broker in json.dumps(found)
    assert "192.0.2.7" not in json.dumps(found)
