import asyncio

import pytest

from mailboat.client import broker_calls
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode
from mailboat.remoting.client import RemotingClient


@pytest.fixture
async def remoting():
    """Return a client's connections."""
    remoting = RemotingClient()
    yield remoting
    await remoting.close()


async def test_a_change_waits_for_a_slow_disk(make_peer, remoting):
    """What a broker makes durable takes longer than other requests may."""
    broker = await make_peer()

    async def save(command):
        await asyncio.sleep(broker_calls.REQUEST_TIMEOUT_S + 0.5)
        return command.response(0)

    broker.answer(RequestCode.UPDATE_AND_CREATE_TOPIC, save)
    fields = {"topic": "T"}
    await broker_calls.change(
        remoting, broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, b"body"
    )
    (request,) = broker.asked(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert (request.ext_fields, bytes(request.body)) == (fields, b"body")


async def test_a_refused_change_is_an_error(make_peer, remoting):
    """The broker's own words reach the caller."""
    broker = await make_peer()
    broker.answer(RequestCode.DELETE_TOPIC_IN_BROKER, lambda command: command.response(1, "no"))
    with pytest.raises(BrokerError, match="no"):
        await broker_calls.change(remoting, broker.address, RequestCode.DELETE_TOPIC_IN_BROKER)
