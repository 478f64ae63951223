"""A broker that asks who it is: who may do what, and that what is refused has no effect.

Every request of the access matrix is sent by everybody. Where it is refused, nothing of what a
request could change is changed: log, topics, groups, offsets, members, settings.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from access_matrix import ALLOWED, BROKER, NOBODIES, NOT_ASKED, REFUSED, SOMEBODIES, filled
from guarded import (
    SignedClient,
    Transport,
    client_of,
    everything,
    guarded_broker,
    known_as,
    transport,
    usual_users,
)

from mailboat.broker.controller import BrokerController
from mailboat.protocol.codes import ResponseCode
from mailboat.security.needs import broker_rows


@asynccontextmanager
async def everybody(
    broker: BrokerController, spoken: Transport
) -> AsyncIterator[dict[str, SignedClient]]:
    """Connect everybody."""
    async with AsyncExitStack() as stack:
        clients: dict[str, SignedClient] = {}
        for who, credentials in {**NOBODIES, **SOMEBODIES}.items():
            client = client_of(broker, credentials, spoken.client)
            clients[who] = await stack.enter_async_context(client)
        yield clients


async def stored_by(root: SignedClient) -> dict[str, str]:
    """Store a message in T and one in U, with a member each; return their ids by topic."""
    await root.make_topic("T")
    await root.make_topic("U")
    await root.heartbeat("T", group="G")
    await root.heartbeat("U", group="X")
    return {topic: await root.send(topic, b"of " + topic.encode()) for topic in ("T", "U")}


@pytest.mark.parametrize("kind", ["plain", "tls", "cold"])
async def test_matrix(tmp_path: Path, kind: str) -> None:
    """Every request by everybody, and no effect of any that is refused.

    Also where another thread has to read the message that a request names.
    """
    wrong: list[str] = []
    spoken = transport("tls" if kind == "tls" else "plain", tmp_path)
    async with (
        guarded_broker(tmp_path, usual_users(), tls=spoken.server) as broker,
        client_of(broker, known_as("root"), spoken.client) as root,
        everybody(broker, spoken) as clients,
    ):
        stored = await stored_by(root)
        if kind == "cold":
            broker.store.warming.hot_bytes = 0
        for number, row in enumerate(BROKER):
            fields = filled(row, stored)
            for who, client in clients.items():
                expected = getattr(row, who, REFUSED)
                if expected == NOT_ASKED:
                    continue
                if kind == "cold" and expected == ResponseCode.SUCCESS:
                    expected = ALLOWED  # No queue is young there, which one of the rows asks about.
                before = everything(broker)
                answer = await client.call(row.code, fields, row.body)
                at = f"{number}: {row.code} {fields} by {who}"
                if answer.code != expected and (expected != ALLOWED or answer.code == REFUSED):
                    wrong.append(f"{at}: {answer.code} not {expected}: {answer.remark}")
                if answer.code == REFUSED and everything(broker) != before:
                    wrong.append(f"{at} had an effect")
    assert wrong == []


async def test_no_request_is_left_out_of_the_matrix(tmp_path: Path) -> None:
    """Whatever a broker answers has a row here, and one in the table of needs."""
    async with guarded_broker(tmp_path, usual_users()) as broker:
        answered = set(broker.dispatcher.codes)
    assert set(broker_rows("C", lambda _: None)) == answered
    assert answered <= {row.code for row in BROKER}
