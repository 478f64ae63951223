"""`mailboat store dump`: messages in the order of the log, no more of them than are wanted."""

from pathlib import Path

from click.testing import CliRunner

from mailboat.cli.store import command
from mailboat.disk.real import RealDisk
from mailboat.model.message import MessageExt
from mailboat.store.inspection import StoreInspector
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import History
from mailboat.testing.store_simulator import HOST, make_message, small_config

MESSAGES = 40


def _fill(root: Path) -> int:
    """Make a store of several segments; return how many there are."""
    config = small_config("ASYNC_FLUSH", store_path_root_dir=str(root))
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    history = History()
    for n in range(MESSAGES):
        body = b"%d" % n + bytes(1000)
        store.put_messages([make_message(history.send("orders", n % 2, body), f"U{n}")])
    segments = len(store.commit_log.segments)
    store.close()
    return segments


def _dump(root: Path, *options: str) -> list[str]:
    done = CliRunner().invoke(command, ["dump", str(root), *options])
    assert done.exit_code == 0, done.output
    return [line.split()[1] for line in done.output.splitlines()]


def test_messages_come_in_the_order_of_the_log(tmp_path: Path) -> None:
    """All of them over all segments; filters choose, and count what they have chosen."""
    assert _fill(tmp_path) > 1
    assert _dump(tmp_path) == [f"orders/{n % 2}@{n // 2}" for n in range(MESSAGES)]
    assert _dump(tmp_path, "--queue", "1", "--count", "3") == [f"orders/1@{n}" for n in range(3)]
    assert _dump(tmp_path, "--topic", "others", "--count", "1") == []
    assert len(_dump(tmp_path, "--count", str(MESSAGES + 1))) == MESSAGES


def test_nothing_is_read_behind_the_last_message_that_is_wanted(tmp_path: Path) -> None:
    """A segment has a gigabyte: one message of it must not cost all of them."""
    _fill(tmp_path)
    inspector = StoreInspector(RealDisk(is_read_only=True), str(tmp_path))
    taken: list[MessageExt] = []

    def take(message: MessageExt) -> bool:
        taken.append(message)
        return len(taken) < 2

    try:
        inspector.each_message(take)
    finally:
        inspector.close()
    assert [message.queue_id for message in taken] == [0, 1]
