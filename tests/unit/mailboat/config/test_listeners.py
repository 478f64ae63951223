"""The setting `listeners`: what it takes, what it refuses, and what a pod knows of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from mailboat.config import load_settings
from mailboat.config.listeners import ListenerConfig, parse_listeners
from mailboat.config.settings import listeners_of
from mailboat.errors import ConfigError

OUTSIDE = {"name": "outside", "port": 10920}


def load(role: str = "broker", environ: dict[str, str] | None = None, **values: str) -> Any:
    """Return the settings of a process with these values."""
    return load_settings(role, environ=environ, overrides=values)  # type: ignore[arg-type]


def test_a_listener_is_plain_and_asks_for_no_certificate_by_default() -> None:
    """Name and port are enough."""
    settings = load(listeners=json.dumps([OUTSIDE]))
    assert parse_listeners(settings.broker.listeners) == (
        ListenerConfig(name="outside", port=10920, tls="disabled", client_auth="none"),
    )
    assert listeners_of(load()) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "Outside"}, "name"),
        ({"name": "a" * 16}, "name"),
        ({"name": "-a"}, "name"),
        ({"name": "internal"}, "stands for listenPort"),
        ({"port": -1}, "port"),
        ({"port": 65_536}, "port"),
        ({"port": "10920"}, "port"),
        ({"tls": "Enforcing"}, "tls"),
        ({"clientAuth": "require", "tls": "enforcing"}, "clientAuth"),
        ({"clientAuth": "required"}, "clientAuth of outside needs its tls"),
        ({"advertised": "mail.example.com"}, "advertised of outside must be host:port"),
        ({"advertised": "fe80::1:10920"}, "advertised of outside must be host:port"),
        ({"advertised": "{podIP}:10920"}, "advertised of outside must be host:port"),
        ({"advertised": "a b:10920"}, "advertised of outside must be host:port"),
        ({"advertised": "a;b:10920"}, "advertised of outside must be host:port"),
        ({"advertised": "a:10920\n"}, "advertised of outside must be host:port"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_a_listener_cannot_be(change: dict[str, Any], words: str) -> None:
    """One sentence that names the setting and what is wrong."""
    with pytest.raises(ConfigError, match="listeners") as refused:
        load(listeners=json.dumps([OUTSIDE | change]))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "address",
    ["192.0.2.7:30920", "mail.example.com:1", "[2001:db8::1]:65535", "{nodeIP}:30100", "a_b:1"],
)
def test_addresses_that_clients_can_use(address: str) -> None:
    """IPv6 in brackets, as clients read it."""
    text = json.dumps([OUTSIDE | {"advertised": address}])
    assert parse_listeners(text)[0].advertised == address


@pytest.mark.parametrize(
    ("listeners", "words"),
    [
        ("outside", "must be a JSON list"),
        ("{}", "must be a JSON list"),
        (json.dumps([{"name": f"o{number}", "port": 0} for number in range(9)]), "at most 8"),
        (json.dumps([OUTSIDE, OUTSIDE | {"port": 1}]), "has the name outside twice"),
        (json.dumps([OUTSIDE, OUTSIDE | {"name": "o"}]), "has the port 10920 twice"),
    ],
)
def test_what_listeners_cannot_be_together(listeners: str, words: str) -> None:
    """As single ones."""
    with pytest.raises(ConfigError, match="listeners") as refused:
        load(listeners=listeners)
    assert words in str(refused.value)


def test_a_name_server_tells_nobody_its_own_address() -> None:
    """Where it would have to be said, nobody reads it."""
    text = json.dumps([OUTSIDE | {"advertised": "a:1"}])
    with pytest.raises(ConfigError, match="advertised is for the listeners of brokers"):
        load("namesrv", listeners=text)
    both = load("standalone", listeners=text, namesrvListeners=json.dumps([OUTSIDE | {"port": 1}]))
    assert [listener.port for listener in listeners_of(both)] == [10920, 1]


@pytest.mark.parametrize(
    ("role", "values", "words"),
    [
        ("broker", {"listenPort": "10920"}, "of listenPort"),
        ("broker", {"listenPort": "10922"}, "of listenPort - 2 (fastListenEnable)"),
        ("broker", {"listenPort": "10919", "brokerRole": "SYNC_MASTER"}, "of haListenPort"),
        ("broker", {"haListenPort": "10920"}, "of haListenPort"),
        ("broker", {"httpPort": "10920"}, "of httpPort"),
        ("broker", {"leaderListenPort": "10920"}, "of leaderListenPort"),
        ("namesrv", {"listenPort": "10920"}, "of the name server's listenPort"),
        ("namesrv", {"httpPort": "10920"}, "of httpPort"),
        ("standalone", {"namesrvListenPort": "10920"}, "of the name server's listenPort"),
    ],
)
def test_a_port_that_something_else_has(role: str, values: dict[str, str], words: str) -> None:
    """Said before anything is opened, with both names."""
    with pytest.raises(ConfigError, match="10920") as refused:
        load(role, listeners=json.dumps([OUTSIDE]), **values)
    assert f"is the port of listener outside and {words}" in str(refused.value)
    free = {key: "0" for key in values if key != "brokerRole"}
    load(role, listeners=json.dumps([OUTSIDE]), **free)


def test_a_pod_is_told_its_file_and_its_node_by_kubernetes_own_names(tmp_path: Path) -> None:
    """In the file that all pods of a group share, `{podName}` stands for each."""
    file = tmp_path / "broker.conf"
    file.write_text("advertisedAddressesFile=/etc/addresses/{podName}.json\n")
    environ = {"POD_NAME": "orders-g0-1", "NODE_IP": "192.0.2.9"}
    broker = load_settings("broker", file=file, environ=environ).broker
    assert broker.advertised_addresses_file == "/etc/addresses/orders-g0-1.json"
    assert broker.node_ip == "192.0.2.9"
    with pytest.raises(ConfigError, match="POD_NAME"):
        load_settings("broker", file=file, environ={})
    assert load(environ=environ, nodeIP="192.0.2.10").broker.node_ip == "192.0.2.10"
    with pytest.raises(ConfigError, match="must be an IP address"):
        load(nodeIP="node-1")
