import os
from pathlib import Path

import pytest

from mailboat.client.local_offsets import LocalOffsets
from mailboat.client.push_consumer import MessageModel, PushConsumer
from mailboat.errors import ConfigError, MailboatError
from mailboat.model.message_queue import MessageQueue

FIRST = MessageQueue("T", "broker-a", 0)
SECOND = MessageQueue("T", "broker-a", 1)


async def test_saved_offsets_are_read_again(tmp_path: Path):
    """What was saved is there after a restart; saving one queue keeps the others."""
    path = tmp_path / "deep" / "offsets.json"
    offsets = LocalOffsets(path)
    await offsets.load()
    assert offsets.get(FIRST) is None
    await offsets.save({FIRST: 5, SECOND: 7})
    await offsets.save({FIRST: 6})
    again = LocalOffsets(path)
    await again.load()
    assert (again.get(FIRST), again.get(SECOND)) == (6, 7)


async def test_file_is_replaced_whole(tmp_path: Path):
    """Beside the file no temporary one is left, and its content is Java's form."""
    path = tmp_path / "offsets.json"
    await LocalOffsets(path).save({FIRST: 5})
    assert os.listdir(tmp_path) == ["offsets.json"]
    expected = '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}'
    assert path.read_text() == expected


async def test_javas_file_is_understood(tmp_path: Path):
    """The pretty-printed file of a Java client, with objects as keys, can be read."""
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n'
        '\t\t\t"topic":"T"\n\t\t}:42\n\t}\n}'
    )
    offsets = LocalOffsets(path)
    await offsets.load()
    assert offsets.get(SECOND) == 42


async def test_damaged_file_is_named(tmp_path: Path):
    """A file that is no table of offsets is an error that names it, not an empty table."""
    path = tmp_path / "offsets.json"
    path.write_text("[1, 2")
    with pytest.raises(MailboatError, match=r"offsets\.json"):
        await LocalOffsets(path).load()


def test_without_a_home_folder_a_file_has_to_be_named(monkeypatch: pytest.MonkeyPatch):
    """A user that the machine does not know has no folder for the default file."""

    def unknown(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(unknown))
    with pytest.raises(ConfigError, match="name a file"):
        PushConsumer("G", model=MessageModel.BROADCASTING)
    PushConsumer("G", model=MessageModel.BROADCASTING, offsets_path=Path("offsets.json"))
    PushConsumer("G")
