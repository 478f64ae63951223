"""kvConfig.json changes hands: a name server of RocketMQ reads ours, and the reverse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from interop_jars import SERVER_LINES
from interop_servers import start_java_namesrv

from mailboat.config import load_settings
from mailboat.namesrv.controller import NamesrvController
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.remoting.client import RemotingClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

NAMESPACE = "ORDER_TOPIC_CONFIG"
_TIMEOUT_S = 20.0


@asynccontextmanager
async def mailboat_namesrv(path: Path) -> AsyncIterator[str]:
    """Run our name server with this file and yield its address."""
    ours = {"kvConfigPath": str(path), "listenPort": "0", "bindAddress": "127.0.0.1"}
    controller = NamesrvController(load_settings("namesrv", overrides=ours))
    await controller.start()
    yield f"127.0.0.1:{controller.port}"
    await controller.shutdown()


async def put(client: RemotingClient, address: str, key: str, value: str) -> None:
    """Set an order configuration."""
    fields: dict[str, ExtValue] = {"namespace": NAMESPACE, "key": key, "value": value}
    request = RemotingCommand.request(RequestCode.PUT_KV_CONFIG, fields)
    answer = await client.request(address, request, _TIMEOUT_S)
    assert answer.code == ResponseCode.SUCCESS


async def get(client: RemotingClient, address: str, key: str) -> object:
    """Return an order configuration, None when there is none."""
    fields: dict[str, ExtValue] = {"namespace": NAMESPACE, "key": key}
    request = RemotingCommand.request(RequestCode.GET_KV_CONFIG, fields)
    answer = await client.request(address, request, _TIMEOUT_S)
    return answer.ext_fields.get("value")


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """Return a client of any name server."""
    client = RemotingClient()
    yield client
    await client.close()


@pytest.mark.parametrize("line", SERVER_LINES)
async def test_order_configurations_go_both_ways(
    java_classpath: Callable[[str, str], str], tmp_path: Path, client: RemotingClient, line: str
) -> None:
    """What one name server was told, the next one knows."""
    java_classpath("server", line)
    path = tmp_path / "kv" / "kvConfig.json"
    async with mailboat_namesrv(path) as address:
        await put(client, address, "of-mailboat", "broker-a:4;broker-b:4")
    java = start_java_namesrv(line, tmp_path / "java", config={"kvConfigPath": path})
    try:
        assert await get(client, java.address, "of-mailboat") == "broker-a:4;broker-b:4"
        await put(client, java.address, "of-java", "broker-c:2")
    finally:
        java.kill()
    async with mailboat_namesrv(path) as address:
        assert await get(client, address, "of-mailboat") == "broker-a:4;broker-b:4"
        assert await get(client, address, "of-java") == "broker-c:2"
