import pytest

from mailboat.client.name_servers import NameServers
from mailboat.errors import BrokerError, ConnectError, RouteNotFoundError
from mailboat.protocol.codes import RequestCode
from mailboat.remoting.client import RemotingClient

CODE = RequestCode.GET_BROKER_CLUSTER_INFO


@pytest.fixture
async def remoting():
    """Return a remoting client."""
    client = RemotingClient()
    yield client
    await client.close()


async def test_one_server_is_kept(make_peer, remoting):
    """Requests go to one name server as long as it answers, not to all in turn."""
    peers = [await make_peer(), await make_peer()]
    for peer in peers:
        peer.answer(CODE, lambda command: command.response(0))
    servers = NameServers([peer.address for peer in peers], remoting)
    for _ in range(6):
        await servers.request(CODE)
    assert sorted(len(peer.requests) for peer in peers) == [0, 6]


async def test_next_server_takes_over_and_stays(make_peer, remoting):
    """When a name server is away the next one answers, and is asked first from then on."""
    peer = await make_peer()
    peer.answer(CODE, lambda command: command.response(0))
    gone = await make_peer()
    await gone.close()
    servers = NameServers([gone.address, peer.address], remoting)
    servers._chosen = 0
    await servers.request(CODE)
    assert servers._chosen == 1
    await servers.request(CODE)
    assert len(peer.requests) == 2


async def test_all_away_is_an_error(make_peer, remoting):
    """When nobody answers, the error of the last one tried is raised."""
    gone = [await make_peer(), await make_peer()]
    for peer in gone:
        await peer.close()
    with pytest.raises(ConnectError):
        await NameServers([peer.address for peer in gone], remoting).request(CODE)


async def test_refusal_is_not_tried_elsewhere(make_peer, remoting):
    """A name server that answers with an error has answered."""
    peers = [await make_peer(), await make_peer()]
    for peer in peers:
        peer.answer(CODE, lambda command: command.response(1, "no"))
    servers = NameServers([peer.address for peer in peers], remoting)
    with pytest.raises(BrokerError, match="no"):
        await servers.request(CODE)
    assert sum(len(peer.requests) for peer in peers) == 1


async def test_unknown_topic_is_named(name_server, remoting):
    """A topic without a route is an error that names it and the name server."""
    servers = NameServers([name_server.address], remoting)
    with pytest.raises(RouteNotFoundError, match=rf"topic nope.*{name_server.address}"):
        await servers.topic_route("nope")
    (request,) = name_server.requests
    assert request.ext_fields["acceptStandardJsonOnly"] == "true"


async def test_every_server_is_told(make_peer, remoting):
    """What changes the name servers' tables goes to each of them."""
    peers = [await make_peer(), await make_peer()]
    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    for peer in peers:
        peer.answer(code, lambda command: command.response(0))
    await NameServers([peer.address for peer in peers], remoting).request_all(code, {"topic": "T"})
    assert [len(peer.requests) for peer in peers] == [1, 1]
