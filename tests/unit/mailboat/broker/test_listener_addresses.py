"""Where clients of a listener find a broker: three sources, and a file that changes."""

import json
import logging
import os
from pathlib import Path

import pytest

from mailboat.broker.listener_addresses import ListenerAddresses
from mailboat.config import BrokerConfig

PLAIN = {"name": "plain", "port": 10920}
TOLD = {"name": "told", "port": 10921, "advertised": "mail.example.com:443"}


def addresses_of(
    *listeners: dict[str, object],
    path: Path | None = None,
    node_ip: str = "",
    host: str = "10.0.0.1",
) -> ListenerAddresses:
    """Return the addresses of a broker that listens at the ports that it was told."""
    config = BrokerConfig(
        listeners=json.dumps(listeners),
        advertised_addresses_file=str(path or ""),
        node_ip=node_ip,
    )
    found = ListenerAddresses(config, host)
    found.ports = {listener.name: listener.port for listener in found.listeners}
    return found


def test_without_a_file_clients_are_told_what_the_listener_says_or_the_brokers_own() -> None:
    """As at the main port, there is always an address."""
    addresses = addresses_of(PLAIN, TOLD)
    assert addresses.addresses() == {"plain": "10.0.0.1:10920", "told": "mail.example.com:443"}
    assert not addresses.changes
    assert addresses_of(PLAIN, host="[2001:db8::1]").addresses() == {"plain": "[2001:db8::1]:10920"}


async def test_with_a_file_a_listener_has_the_address_that_stands_there(tmp_path: Path) -> None:
    """Whoever gives out addresses may not know one yet; the broker's own would lead nowhere."""
    path = tmp_path / "addresses.json"
    addresses = addresses_of(PLAIN, TOLD, path=path)
    changes: list[dict[str, str]] = []
    addresses.on_change = lambda: changes.append(addresses.addresses())
    assert addresses.changes
    await addresses.look()
    assert addresses.addresses() == {"told": "mail.example.com:443"}
    path.write_text('{"plain":"192.0.2.7:30920","unknown":"a:1"}')
    await addresses.look()
    await addresses.look()
    path.write_text('{"plain":"192.0.2.7:30920","told":"192.0.2.7:30921"}')
    await addresses.look()
    path.unlink()
    await addresses.look()
    assert changes == [
        {"plain": "192.0.2.7:30920", "told": "mail.example.com:443"},
        {"plain": "192.0.2.7:30920", "told": "192.0.2.7:30921"},
        {"told": "mail.example.com:443"},
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no JSON object"),
        (b'{"plain":', "no JSON object"),
        (b'["plain"]', "no JSON object"),
        (b'{"plain":30920}', "no JSON object"),
        (b'{"plain":"\xff:1"}', "no JSON object"),
        (b'{"plain":"192.0.2.8"}', "the address of plain must be host:port"),
        (b'{"plain":"192.0.2.8:1","x":"' + b"a" * 65_536 + b'"}', "more than 65536 bytes"),
    ],
)
async def test_a_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, words: str
) -> None:
    """And is complained about once, until it can be."""
    path = tmp_path / "addresses.json"
    path.write_text('{"plain":"192.0.2.7:30920"}')
    addresses = addresses_of(PLAIN, path=path)
    await addresses.look()
    addresses.on_change = lambda: pytest.fail("nothing has changed")
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        await addresses.look()
        await addresses.look()
    assert [words in record.message for record in caplog.records] == [True]
    assert words in addresses.problem
    assert addresses.addresses() == {"plain": "192.0.2.7:30920"}
    path.write_text('{"plain":"192.0.2.7:30920"}')
    await addresses.look()
    assert addresses.problem == ""


async def test_a_pipe_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    """Nothing is waited for that nobody writes."""
    path = tmp_path / "addresses.json"
    os.mkfifo(path)
    addresses = addresses_of(PLAIN, path=path)
    await addresses.look()
    assert "it is not a file" in addresses.problem


@pytest.mark.parametrize(
    ("node_ip", "address"),
    [("192.0.2.9", "192.0.2.9:30100"), ("2001:db8::9", "[2001:db8::9]:30100"), ("", None)],
)
async def test_the_address_of_the_node_is_filled_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, node_ip: str, address: str | None
) -> None:
    """Without it there is no address, and the log says why, once."""
    path = tmp_path / "addresses.json"
    path.write_text('{"plain":"{nodeIP}:30100"}')
    addresses = addresses_of(PLAIN, path=path, node_ip=node_ip)
    with caplog.at_level(logging.WARNING):
        await addresses.look()
        await addresses.look()
    assert addresses.addresses().get("plain") == address
    assert len(caplog.records) == (address is None)
