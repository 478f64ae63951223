"""A broker of users with and without quotas, and what they send and pull there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from guarded import (
    Users,
    client_of,
    guarded_broker,
    known_as,
    pull_fields,
    send_fields,
    signed_frame,
    wire_to,
)

from mailboat.broker.controller import BrokerController
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.codes import ResponseCode
from mailboat.security.quotas import Quotas

SUCCESS, FLOW, BUSY = ResponseCode.SUCCESS, ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_BUSY
AGAIN, NO_TOPIC = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.TOPIC_NOT_EXIST
NO_GROUP = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
ROOT, BOUNDED, FREE = known_as("root"), known_as("bounded"), known_as("free")


def make_users() -> Users:
    """Return a Super user, and two that may use everything; one of them is bounded."""
    users = Users()
    users.add("root", is_super=True)
    for name in ("bounded", "free"):
        users.add(name, ("*", "All"))
    return users


@asynccontextmanager
async def broker_for(root: Path, users: Users) -> AsyncIterator[BrokerController]:
    """Run a broker with a topic and a group."""
    async with guarded_broker(root, users) as controller:
        async with client_of(controller, ROOT) as client:
            await client.make_topic("T", 4)
            await client.heartbeat("T", group="G")
        yield controller


def bound(users: Users, **quotas: int) -> None:
    """Give the bounded user quotas."""
    users.change("bounded", quotas=Quotas(**quotas))


def send(opaque: int, body: bytes = b"m", credentials: Any = BOUNDED, **more: Any) -> bytes:
    """Return a send."""
    fields = send_fields(more.pop("topic", "T"), **more.pop("fields", {}))
    code = more.pop("code", Code.SEND_MESSAGE_V2)
    return signed_frame(code, fields, credentials, body, opaque=opaque, **more)


def pull(opaque: int, credentials: Any = BOUNDED, **fields: Any) -> bytes:
    """Return a pull of T."""
    more = {"sysFlag": 6, "suspendTimeoutMillis": 15_000, **fields}
    frame = pull_fields(more.pop("topic", "T"), more.pop("group", "G"), **more)
    return signed_frame(Code.PULL_MESSAGE, frame, credentials, opaque=opaque)


def stored(broker: BrokerController, topic: str = "T", queue_id: int = 0) -> int:
    """Return how many messages a queue has."""
    return broker.store.max_offset(topic, queue_id)


async def fill(broker: BrokerController, count: int, body: bytes = b"m") -> None:
    """Store messages in queue 0 of T in the name of somebody without quotas."""
    async with wire_to(broker) as wire:
        for begin in range(0, count, 200):
            opaques = range(begin, min(begin + 200, count))
            wire.write(*(send(opaque, body, FREE) for opaque in opaques))
            assert set((await wire.codes(len(opaques))).values()) == {SUCCESS}


def refusals(broker: BrokerController, name: str = "bounded") -> dict[str, int]:
    """Return how often each quota of a user refused something."""
    assert broker.quotas is not None
    return next((dict(use.refused) for use in broker.quotas.uses() if use.name == name), {})
