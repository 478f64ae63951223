"""How long sends wait for a replica whose connection has ended."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from full_volume import full
from real_time import at_most_s
from replica_nodes import ReplicaNodes, same_log

from mailboat.broker.replicas.peers import Peers
from mailboat.client import Message, Producer
from mailboat.replication.lease import Lease


def _peers(nodes: ReplicaNodes, ordinal: int) -> Peers:
    replicas = nodes.broker(ordinal).replicas
    assert replicas is not None
    return replicas.peers


async def test_a_killed_slave_stalls_sends_for_a_second(tmp_path: Path) -> None:
    """Nobody waits the 3 s for it that a silent one on an open connection gets."""
    loop = asyncio.get_running_loop()
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            await producer.send(Message("topic", b"before"))
            # Of a process that was killed others see as much: its connections end.
            await _peers(nodes, 2).close()
            ended_s = loop.time()
            await producer.send(Message("topic", b"after"))
            stalled_s = loop.time() - ended_s
        leading = nodes.group(0).replica.leading
        assert leading is not None
        assert {member.ordinal for member in leading.recorded} == {0, 1}
        print(f"stalled for {stalled_s:.2f} s")
        assert 0.5 < stalled_s < at_most_s(2.5, 3)


async def test_a_link_that_comes_back_shrinks_no_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made again at once, also where nobody was to connect for some time yet."""
    loop = asyncio.get_running_loop()
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        written: list[Lease] = []
        master = nodes.group(0)
        write_lease = master._known.write

        def note(request: int, replaced: int | None, lease: Lease) -> None:
            written.append(lease)
            write_lease(request, replaced, lease)

        monkeypatch.setattr(master._known, "write", note)
        master_peers, slave_peers = _peers(nodes, 0), _peers(nodes, 2)
        link = master_peers.link_to(2)
        assert link is not None
        await nodes.until(lambda: loop.time() > link.made_s + 1.1)
        slave_peers._next_try_s = loop.time() + 15
        link.drop("as a network would")
        ended_s = loop.time()
        await nodes.until(lambda: master_peers.link_to(2) not in (None, link))
        assert loop.time() - ended_s < at_most_s(0.9, 12)
        written.clear()
        await nodes.until(lambda: len(written) >= 2)
        assert [len(lease.in_sync) for lease in written] == [3] * len(written)


async def test_a_slave_without_room_stalls_nobody(
    tmp_path: Path, volume: Callable[[int], Path]
) -> None:
    """It leaves the set when it cannot store a message, however often it comes back to try."""
    loop = asyncio.get_running_loop()
    folder = tmp_path / "replica-2"
    folder.symlink_to(volume(40 << 20))
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        slave = nodes.group(2)
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            await producer.send(Message("topic", b"before"))
            longest_s, tries = 0.0, set()
            with full(folder):
                while len(tries) < 4:
                    began_s = loop.time()
                    await producer.send(Message("topic", random.randbytes(100_000)))
                    longest_s = max(longest_s, loop.time() - began_s)
                    if slave.write_trouble:
                        tries.add(slave.replica)
                        # With room again it has to take all that was sent.
                        await asyncio.sleep(0.05)
        print(f"stalled for {longest_s:.2f} s")
        assert longest_s < at_most_s(0.9, 20)
        await nodes.in_sync()
        assert same_log(nodes.log_bytes(2), nodes.log_bytes(0))
