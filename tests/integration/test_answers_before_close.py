"""What was answered arrives before a connection ends, however slowly it is read."""

import asyncio
import socket
import struct
from pathlib import Path

import pytest
from lease_nodes import LEADERS_IP, LeaseNodes

from mailboat.broker.replicas import by_hand
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection

_ASKED = 60
_READ_EVERY_S = 0.01


def _question(number: int) -> bytes:
    command = RemotingCommand(code=RequestCode.GET_BROKER_CONFIG)
    command.opaque = number
    return command.encode()


async def _read_slowly(client: socket.socket) -> bytes:
    """Read to the end, as over a network of some MB/s."""
    loop, found = asyncio.get_running_loop(), b""
    async with asyncio.timeout(20):
        while True:
            try:
                data = await loop.sock_recv(client, 65_536)
            except ConnectionResetError:
                return found
            if not data:
                return found
            found += data
            await asyncio.sleep(_READ_EVERY_S)


def _answers(data: bytes) -> tuple[int, int]:
    """Return how many answers there are, and how many bytes behind the last whole one."""
    count = at = 0
    while at + 4 <= len(data):
        end = at + 4 + struct.unpack(">i", data[at : at + 4])[0]
        if end > len(data):
            break
        count, at = count + 1, end
    return count, len(data) - at


@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_handover_cuts_no_answer_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_ended: bool
) -> None:
    """Although the client has sent another request meanwhile, which nobody reads any more."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        broker, loop = nodes.broker(0), asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.setblocking(False)
            await loop.sock_connect(client, (LEADERS_IP, broker.port))
            peer = f"127.0.0.1:{client.getsockname()[1]}"
            await loop.sock_sendall(client, _question(0))
            one = b""
            while _answers(one) != (1, 0):
                one += await loop.sock_recv(client, 65_536)
            await loop.sock_sendall(client, b"".join(map(_question, range(1, 1 + _ASKED))))
            found: list[Connection] = []

            def is_accepted() -> bool:
                found[:] = [item for item in broker._server.connections if item.peer == peer]
                return bool(found)

            await nodes.until(is_accepted)
            [mine] = found
            # All are answered, of about the same size.
            least = (_ASKED + 0.5) * len(one)
            await nodes.until(lambda: mine._written_bytes > least and not mine.unsent_bytes())
            ending = asyncio.create_task(
                nodes.stop(0) if is_ended else by_hand.hand_over(nodes.group(0), None)
            )
            await nodes.until(lambda: mine._is_held_up)
            await loop.sock_sendall(client, _question(1 + _ASKED))
            assert _answers(await _read_slowly(client)) == (_ASKED, 0)
        await ending
