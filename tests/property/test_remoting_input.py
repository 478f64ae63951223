"""Properties of a connection: whatever a peer sends, good requests are served."""

import asyncio
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder, encode_frame
from mailboat.remoting.connection import Connection
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.limits import RemotingLimits

UNHURRIED = settings(deadline=None)  # other work on the machine is no failure
ECHO = 1000


class NotedTransport(asyncio.Transport):
    """Takes note of what is written."""

    def __init__(self) -> None:
        """Stand for a connected socket."""
        super().__init__({"peername": ("10.0.0.1", 5000)})
        self.written = b""
        self.is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the mark."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take note of the bytes."""
        assert not self.is_closed
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        """Return 0: the peer reads at once."""
        return 0

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.is_closed

    def close(self) -> None:
        """Take note."""
        self.is_closed = True


async def talk(chunks: list[bytes]) -> tuple[list[RemotingCommand], bool]:
    """Send chunks to a server that knows ECHO; return its answers and whether it closed."""
    dispatcher = Dispatcher()
    dispatcher.register(ECHO, lambda _, command: command.response(0, body=command.body))
    owner = ConnectionSet(RemotingLimits(), name="test", capacity=None, expects_frames=True)
    connection = Connection(dispatcher, owner)
    transport = NotedTransport()
    connection.connection_made(transport)
    for chunk in chunks:
        connection.data_received(chunk)
    connection.connection_lost(None)
    answers = [decode_command(frame) for frame in FrameDecoder().feed(transport.written)]
    return answers, transport.is_closed


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Cut a stream at some places."""
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(places)]


NEARLY_HEADERS = st.binary(max_size=40) | st.sampled_from(
    [b'{"code":1000}', b'{"code":1000,"flag":1}', b'{"code":9}', b'{"code":1000,"flag":2}', b"{}"]
)
CHUNKS = st.one_of(
    st.binary(max_size=60),
    st.builds(encode_frame, st.integers(0, 1), NEARLY_HEADERS, st.binary(max_size=20)),
)


@UNHURRIED
@given(st.lists(CHUNKS, max_size=6), st.lists(st.integers(0, 1000), max_size=5))
def test_any_input_is_served_or_closed(chunks: list[bytes], cuts: list[int]) -> None:
    """No bytes raise; a good request behind them is answered unless the connection was closed."""
    good = RemotingCommand(ECHO, opaque=77, body=b"good").encode()
    stream = b"".join(chunks)
    answers, is_closed = asyncio.run(talk([*pieces(stream, cuts), good]))
    served = any(answer.opaque == 77 and answer.body == b"good" for answer in answers)
    # Unfinished input may have swallowed the good request.
    assert served or is_closed or FrameDecoder().feed(stream) is not None


@UNHURRIED
@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(0, 2000), max_size=10))
def test_requests_before_damage_are_answered_in_order(bodies: list[bytes], cuts: list[int]) -> None:
    """However the bytes arrive, every good request is answered before the connection closes."""
    stream = b"".join(
        RemotingCommand(ECHO, opaque=opaque, body=body).encode()
        for opaque, body in enumerate(bodies)
    )
    answers, is_closed = asyncio.run(talk(pieces(stream + b"\xff" * 8, cuts)))
    assert bodies == [answer.body for answer in answers]
    assert list(range(len(bodies))) == [answer.opaque for answer in answers]
    assert is_closed
