from mailboat.model.message_queue import MessageQueue
from mailboat_spark.job import checkpoint


def _write(folder, batch, end, *, done):
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    text = f'v1\n{{"batchWatermarkMs":0}}\n{{"_v":1,"t":{{"b:0":{end}}}}}'
    (folder / "offsets" / str(batch)).write_text(text)
    if done:
        (folder / "commits" / str(batch)).write_text("v1\n{}")


def test_only_finished_batches_count(tmp_path):
    """A planned batch is not read yet; 10 comes after 9."""
    assert checkpoint.finished_offsets(tmp_path) == {}
    assert checkpoint.last_planned_batch(tmp_path) == checkpoint.NO_BATCH
    assert not checkpoint.exists(tmp_path)
    _write(tmp_path, 9, 90, done=True)
    _write(tmp_path, 10, 100, done=True)
    _write(tmp_path, 11, 110, done=False)
    assert checkpoint.finished_offsets(tmp_path) == {MessageQueue("t", "b", 0): 100}
    assert checkpoint.last_finished_batch(tmp_path) == 10
    assert checkpoint.last_planned_batch(tmp_path) == 11
