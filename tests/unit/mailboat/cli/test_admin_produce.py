import os
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from mailboat.cli import produce
from mailboat.cli.input_lines import read_lines
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


async def cut(
    pipe: tuple[int, int], data: bytes, to_message: produce.ToMessage, **options: bool
) -> list[produce._Batch]:
    """Return the batches that some input makes, until it is bad."""
    reading, writing = pipe
    os.write(writing, data)
    os.close(writing)
    counter = Counter("sent", quiet_on_stdout=False)
    lines = read_lines(reading, 1000)
    return [batch async for batch in produce._batches(lines, to_message, counter, **options)]


async def batches(pipe: tuple[int, int], data: bytes, to_message: produce.ToMessage):
    """Return the messages of those batches that have some."""
    return [batch.messages for batch in await cut(pipe, data, to_message) if batch.messages]


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
    "line",
    [
        b"{",
        b"[]",
        b'{"body":7}',
        b'{"body_base64":"?"}',
        b"{}",
        b'{"body":""}',
        b'{"body":"x","properties":{"a":"\\u0001"}}',
        b'{"body":"x","properties":{"a":"' + b"x" * 32_700 + b'"}}',
        b'{"body":"\\ud800x"}',
    ],
)
async def test_bad_json_line_is_named(pipe, line: bytes):
    """A line that is no message ends the command with its number."""
    with pytest.raises(produce._BadInput) as caught:
        await batches(pipe, b'{"body":"x"}\n' + line + b"\n", produce._json_reader("T"))
    assert caught.value.line == 2


async def test_batches_know_their_lines(pipe):
    """Every line belongs to one batch; lines before the first message have one of their own."""
    found = await cut(pipe, b"\n\na\n\nb\n\n", produce._line_reader("T", None))
    assert [(b.first_line, b.last_line, len(b.messages)) for b in found] == [(1, 2, 0), (3, 6, 2)]


async def test_large_line_has_a_batch_of_its_own(pipe, monkeypatch: pytest.MonkeyPatch):
    """What would make a batch too large goes by itself, and so does what no batch may hold."""
    monkeypatch.setattr(produce, "BATCH_BYTES", 200)
    lines = (b"a", b"b", b"x" * 200, b"c", b"d")
    found = await batches(pipe, b"\n".join((*lines, b"")), produce._line_reader("T", None))
    assert [len(messages) for messages in found] == [2, 1, 2]


async def test_delayed_lines_go_one_by_one(pipe):
    """Brokers take no delayed messages in batches."""
    line = b'{"body":"x","properties":{"DELAY":"3"}}\n'
    found = await batches(pipe, b'{"body":"a"}\n' + line * 2, produce._json_reader("T"))
    assert [len(messages) for messages in found] == [1, 1, 1]


async def test_lines_for_a_retry_topic_go_one_by_one(pipe):
    """Nor any message for a group's own topic."""
    found = await cut(pipe, b"a\nb\n", produce._line_reader("%RETRY%G", None), one_by_one=True)
    assert [len(batch.messages) for batch in found] == [1, 1]


@pytest.mark.parametrize("tag", ["x" * 32_700, "\udcff", "a\x01b"])
def test_impossible_tag_is_refused_before_anything_is_read(tag: str):
    """A tag that no message can have is one sentence."""
    with pytest.raises(IllegalMessageError):
        produce._line_reader("T", tag)


def test_tags_do_not_go_with_json():
    """An option that would be ignored is refused."""
    result = CliRunner().invoke(produce.command, ["T", "--json", "--tags", "a"])
    assert result.exit_code == 2
    assert "--tags" in result.output
