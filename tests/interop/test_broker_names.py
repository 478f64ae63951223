"""Registrations cross: RocketMQ's brokers at our name server, and ours at RocketMQ's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from interop_jars import SERVER_LINES
from interop_servers import REGISTRATION_TIMEOUT_S

from mailboat.broker.controller import BrokerController
from mailboat.broker.registration import NameServerState
from mailboat.config import load_settings
from mailboat.namesrv.controller import NamesrvController

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


async def start_broker(stack: AsyncExitStack, root: Path, namesrv: str) -> BrokerController:
    """Run a broker of ours that has the Java broker's name."""
    settings = {
        "brokerName": "broker-java",
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "namesrvAddr": namesrv,
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": "1048576",
    }
    broker = BrokerController(load_settings("broker", overrides=settings))
    await broker.start()
    stack.push_async_callback(broker.shutdown)
    return broker


async def settled(broker: BrokerController) -> NameServerState:
    """Return what the broker's one name server says of it: it is there, or its name is taken.

    A start waits for a name server for a second only; a JVM that has just begun takes longer.
    """
    deadline_s = time.monotonic() + REGISTRATION_TIMEOUT_S
    while True:
        (state,) = broker.registration.states()
        if state.registered or state.held_by or time.monotonic() > deadline_s:
            return state
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("line", SERVER_LINES)
async def test_a_java_broker_keeps_its_name_while_it_lives(
    line: str, java_broker: Callable[..., object], tmp_path: Path
) -> None:
    """One of ours with its name is refused by our name server, and let in once the Java broker has
    ended; a Java broker is let in at another address then just as well."""
    async with AsyncExitStack() as stack:
        namesrv = NamesrvController(
            load_settings("namesrv", overrides={"listenPort": "0", "bindAddress": "127.0.0.1"})
        )
        await namesrv.start()
        stack.push_async_callback(namesrv.shutdown)
        address = f"127.0.0.1:{namesrv.port}"

        def start_java(folder: str):  # type: ignore[no-untyped-def]
            # On a busy machine the first registration of a JVM may come too late for itself.
            config = {"registerNameServerPeriod": 10_000}
            return java_broker(line, tmp_path / folder, address, config=config)

        first = await asyncio.to_thread(start_java, "first")
        ours = await start_broker(stack, tmp_path / "ours", address)
        assert (await settled(ours)).held_by == first.address
        assert namesrv.routes.broker_addresses("broker-java") == {0: first.address}
        await ours.shutdown()
        await asyncio.to_thread(first.kill)
        second = await asyncio.to_thread(start_java, "second")
        assert second.address != first.address
        assert namesrv.routes.broker_addresses("broker-java") == {0: second.address}


@pytest.mark.parametrize("line", SERVER_LINES)
async def test_a_java_name_server_takes_our_broker(
    line: str, java_namesrv: Callable[[str], str], tmp_path: Path
) -> None:
    """It passes over the field with the broker's identity."""
    async with AsyncExitStack() as stack:
        broker = await start_broker(stack, tmp_path, java_namesrv(line))
        state = await settled(broker)
        assert (state.registered, state.error) == (True, None)
