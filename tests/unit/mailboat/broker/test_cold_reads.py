"""Reads from the disk: shares of connections and addresses, and turns of those that wait."""

from functools import partial
from types import SimpleNamespace
from typing import cast

from mailboat.broker.cold_reads import ColdReads
from mailboat.remoting.connection import Connection


class _Peer(SimpleNamespace):
    """A connection, as far as its address matters."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def _connect(address: str) -> Connection:
    return cast(Connection, _Peer(peer_address=address.rpartition(":")[0]))


def test_a_connection_has_its_share() -> None:
    """What waits begins as its own reads end."""
    reads, begun = ColdReads(2), list[str]()
    one, other = _connect("10.0.0.1:1"), _connect("10.0.0.2:1")
    assert [reads.begin(one) for _ in range(3)] == [True, True, False]
    reads.wait(one, partial(begun.append, "third"))
    assert reads.begin(other)
    reads.end(other)
    assert begun == []
    reads.end(one)
    assert begun == ["third"]
    assert reads.begin(one)


def test_an_address_has_its_share_and_its_connections_take_turns() -> None:
    """However many connections it opens, others read."""
    reads, begun = ColdReads(2, 3), list[str]()
    first, second, third = (_connect(f"10.0.0.1:{port}") for port in range(3))
    assert [reads.begin(peer) for peer in (first, first, second, second)] == [True] * 3 + [False]
    assert reads.begin(_connect("10.0.0.2:0"))

    def begin(peer: Connection, name: str) -> None:
        assert reads.begin(peer)
        begun.append(name)

    for peer, name in ((first, "a"), (first, "b"), (second, "c"), (third, "d"), (second, "e")):
        reads.wait(peer, partial(begin, peer, name))
    for peer in (second, second, third):
        reads.end(peer)
    assert begun == ["c", "d", "e"]
    for peer in (first, first, second, first, first):
        reads.end(peer)
    assert begun == ["c", "d", "e", "a", "b"]
    assert not reads._waiting
    assert list(reads._of_address.values()) == [1]
