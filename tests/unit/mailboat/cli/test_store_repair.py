"""`mailboat store repair` of a store that RocketMQ has left."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from mailboat.cli.store import command
from mailboat.disk.real import RealDisk
from mailboat.model.names import SCHEDULE_TOPIC
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.store_simulator import HOST, small_config


def _store(root: Path) -> MessageStore:
    config = small_config("ASYNC_FLUSH", store_path_root_dir=str(root))
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    return store


@pytest.mark.parametrize(("options", "delay_ms"), [([], 5_000), (["--delay-levels=7s 1m"], 60_000)])
def test_delayed_messages_are_timed_by_the_table_of_their_broker(
    tmp_path: Path, options: list[str], delay_ms: int
) -> None:
    """Records of RocketMQ say the level alone; without the option its own table counts."""
    store = _store(tmp_path)
    message = MessageInner(
        SCHEDULE_TOPIC, 1, b"x", b"DELAY\x012\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02", 0, None,
        None, 0, 0, 1_700_000_000_000, HOST,
    )  # fmt: skip
    store.put_messages([message])
    assert message.status == PutStatus.PUT_OK
    stored_ms = store.commit_log.last_store_timestamp_ms
    store.close()
    done = CliRunner().invoke(command, ["repair", str(tmp_path), "--rebuild", *options])
    assert done.exit_code == 0, done.output
    store = _store(tmp_path)
    unit = store.queues.by_key[SCHEDULE_TOPIC, 1].unit(0)
    store.close()
    assert unit is not None
    assert unit[2] - stored_ms == delay_ms


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    """In the words of the setting, and with the exit code of wrong usage."""
    done = CliRunner().invoke(command, ["repair", str(tmp_path), "--delay-levels=7"])
    assert done.exit_code == 2
    assert "'7' must be times such as 1s 5s 1m 2h" in done.output
