import os
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from mailboat.cli import produce
from mailboat.cli.progress import Counter
from mailboat.errors import IllegalMessageError
from mailboat.model.message import Message


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Return the two ends of a pipe."""
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            continue


async def batches(pipe: tuple[int, int], data: bytes, to_message: produce.ToMessage):
    """Return the batches that some input makes."""
    reading, writing = pipe
    os.write(writing, data)
    os.close(writing)
    counter = Counter("sent", quiet_on_stdout=False)
    return [batch async for batch in produce._batches(reading, to_message, counter)]


async def test_lines_become_messages(pipe):
    """Each line is a body, with the tag of the command; empty lines are no messages."""
    (batch,) = await batches(pipe, b"one\n\ntwo\n", produce._line_reader("T", "a"))
    assert batch == [Message("T", b"one", "a"), Message("T", b"two", "a")]


async def test_batches_have_a_limit(pipe, monkeypatch: pytest.MonkeyPatch):
    """Neither too many messages nor too many bytes travel in one request."""
    monkeypatch.setattr(produce, "BATCH_MESSAGES", 3)
    monkeypatch.setattr(produce, "BATCH_BYTES", 100)
    data = b"\n".join([b"a"] * 4 + [b"x" * 60] * 3)
    sizes = [len(batch) for batch in await batches(pipe, data, produce._line_reader("T", None))]
    assert sizes == [3, 3, 1]


async def test_json_lines(pipe):
    """A JSON line may carry key, tags and properties; bytes come as base64, other fields go."""
    data = (
        b'{"body":"x","key":"k","tags":"a","properties":{"p":"v"},"queue_id":3}\n'
        b'{"body_base64":"/wA=","key":["k1","k2"]}\n'
    )
    (batch,) = await batches(pipe, data, produce._json_reader("T"))
    assert batch == [
        Message("T", b"x", "a", "k", {"p": "v"}),
        Message("T", b"\xff\x00", keys=["k1", "k2"]),
    ]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"body":7}', b'{"body_base64":"?"}', b"{}", b'{"body":""}']
)
async def test_bad_json_line_is_named(pipe, line: bytes):
    """A line that is no message ends the command with its number."""
    with pytest.raises(IllegalMessageError, match="line 2: "):
        await batches(pipe, b'{"body":"x"}\n' + line + b"\n", produce._json_reader("T"))


def test_tags_do_not_go_with_json():
    """An option that would be ignored is refused."""
    result = CliRunner().invoke(produce.command, ["T", "--json", "--tags", "a"])
    assert result.exit_code == 2
    assert "--tags" in result.output
