"""One process with its parts: what it tells, how it fails, and that it leaves nothing behind."""

import asyncio
import socket
from pathlib import Path

import pytest

from mailboat.config import Role, Settings, load_settings
from mailboat.node import Node
from mailboat.testing.cluster import SMALL_STORE


def _settings(role: Role, folder: Path, **overrides: str) -> Settings:
    prefix = {"namesrvListenPort": "0"} if role == "standalone" else {}
    store = {} if role == "namesrv" else {**SMALL_STORE, "storePathRootDir": str(folder)}
    common = {"bindAddress": "127.0.0.1", "listenPort": "0", "httpPort": "0"}
    return load_settings(role, overrides={**common, **prefix, **store, **overrides})


async def test_a_wildcard_address_is_told_as_one_that_can_be_reached(tmp_path: Path) -> None:
    """0.0.0.0 is where a server listens, not where a client connects."""
    node = Node(_settings("namesrv", tmp_path, bindAddress="0.0.0.0"))
    await node.start()
    try:
        addresses = node.addresses()
        assert {address.split(":")[0] for address in addresses.values()} == {"127.0.0.1"}
        for address in addresses.values():
            _, writer = await asyncio.open_connection("127.0.0.1", int(address.split(":")[1]))
            writer.close()
            await writer.wait_closed()
    finally:
        await node.shutdown()


async def test_the_standalone_broker_uses_its_own_name_server(tmp_path: Path) -> None:
    """On return from the start the broker is registered, whatever ports were free."""
    node = Node(_settings("standalone", tmp_path))
    await node.start()
    try:
        assert node.namesrv is not None
        assert node.broker is not None
        assert node.namesrv.routes.broker_addresses("broker-a") == {0: node.broker.address}
    finally:
        await node.shutdown()
    assert node.namesrv.routes.broker_count() == 0


async def test_a_failed_part_is_the_failure_of_the_process(tmp_path: Path) -> None:
    """The first sentence that says why is what `wait_failed` returns."""
    node = Node(_settings("standalone", tmp_path))
    await node.start()
    try:
        failed = asyncio.create_task(node.wait_failed())
        await asyncio.sleep(0)
        assert not failed.done()
        assert node.broker is not None
        node.broker.supervisor.fail("background task flush has stalled")
        async with asyncio.timeout(5):
            assert await failed == "background task flush has stalled"
    finally:
        await node.shutdown()


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    """After the broker's port is refused, the name server's and the HTTP port are free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        node = Node(_settings("standalone", tmp_path, listenPort=port))
        with pytest.raises(OSError, match="in use"):
            await node.start()
    for address in node.addresses().values():
        if address.endswith(f":{port}"):
            continue
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address.split(":"))
    again = Node(_settings("standalone", tmp_path))
    await again.start()
    await again.shutdown()


async def test_an_http_port_in_use_fails_the_start(tmp_path: Path) -> None:
    """The broker is not started behind a port that cannot be watched."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node = Node(_settings("broker", tmp_path, httpPort=str(taken.getsockname()[1])))
        with pytest.raises(OSError, match="in use"):
            await node.start()
    assert node.broker is None
