import json

import pytest

from mailboat.errors import ConfigError
from mailboat_spark.job.pairing import RECORD_FILE, BadRecordError, pair
from mailboat_spark.job.table import ForeignTableError

COLUMNS = ("topic", "date")
PART = "part-00000-01234567-89ab-cdef-0123-456789abcdef.c000.zstd.parquet"


class Job:
    """The folders of a job, with batches as Spark leaves them."""

    def __init__(self, root, name="table"):
        """Name them."""
        self.output = root / name
        self.checkpoint = root / f"{name}-checkpoint"
        for folder in (self.output, self.checkpoint):
            folder.mkdir()

    def begin(self, columns=COLUMNS):
        """Start for the first time, up to the first batch."""
        pair(self.checkpoint, self.output, columns)
        self.begin_spark()

    def begin_spark(self):
        """Make what Spark makes before the first batch."""
        (self.output / "_spark_metadata").mkdir()
        (self.checkpoint / "metadata").write_text('{"id":"x"}')
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir()

    def run(self, *, planned, listed, finished):
        """Leave batches up to these numbers; the table's list is compacted at its end."""
        for folder, last in (("offsets", planned), ("commits", finished)):
            for batch in range(last + 1):
                (self.checkpoint / folder / str(batch)).write_text("v1")
        for batch in range(listed + 1):
            name = f"{batch}.compact" if batch == 9 else str(batch)
            (self.output / "_spark_metadata" / name).write_text("v1")

    def pair(self, columns=COLUMNS, output=None):
        """Start again."""
        pair(self.checkpoint, output or self.output, columns)


@pytest.fixture
def job(tmp_path):
    """A job that has begun and has no batch yet."""
    job = Job(tmp_path)
    job.begin()
    return job


def tree(*folders):
    """Return every file below some folders with its content."""
    return {
        path: path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("planned", "listed", "finished"),
    [
        (-1, -1, -1),
        # Killed in the first batch, before and after the table lists it.
        (0, -1, -1),
        (0, 0, -1),
        (7, 7, 7),
        # Killed in a later one.
        (8, 7, 7),
        (8, 8, 7),
        (9, 9, 9),
        (9, 9, 8),
    ],
)
def test_every_cut_of_a_batch_is_gone_on_from(job, planned, listed, finished):
    """A kill at any point leaves a pair that belongs together."""
    job.run(planned=planned, listed=listed, finished=finished)
    job.pair()


def test_a_first_start_cut_before_its_checkpoint_begins_again(tmp_path):
    """Spark makes the folder of the table's list before it begins the checkpoint."""
    job = Job(tmp_path)
    job.pair()
    (job.output / "_spark_metadata").mkdir()
    job.pair()
    (job.output / "_spark_metadata" / "0").write_text("v1")
    with pytest.raises(ForeignTableError, match="holds _spark_metadata"):
        job.pair()


@pytest.mark.parametrize(
    ("planned", "listed", "finished", "words"),
    [
        (7, 6, 7, "ends with batch 6, but .* has finished batch 7"),
        (8, 6, 7, "ends with batch 6, but .* has finished batch 7"),
        (7, 8, 7, "ends with batch 8, but .* has finished batch 7"),
        (8, 9, 7, "ends with batch 9, but .* has finished batch 7"),
        (7, 12, 7, "ends with batch 12, but .* has finished batch 7"),
        (0, 1, -1, "ends with batch 1, but .* has finished no batch"),
        (-1, 0, -1, "ends with batch 0, but .* has finished no batch"),
        (0, -1, 0, "holds no batch, but .* has finished batch 0"),
    ],
)
def test_table_and_checkpoint_of_different_times_are_refused(job, planned, listed, finished, words):
    """Where one is an older copy, Spark would lose messages without a word."""
    job.run(planned=planned, listed=listed, finished=finished)
    before = tree(job.output, job.checkpoint)
    with pytest.raises(ForeignTableError, match=words):
        job.pair()
    assert tree(job.output, job.checkpoint) == before


def test_a_checkpoint_does_not_go_on_in_an_empty_output(job, tmp_path):
    """Spark's list of the table would begin in the middle and fail at its first compaction."""
    job.run(planned=4, listed=4, finished=4)
    empty = tmp_path / "new"
    empty.mkdir()
    with pytest.raises(ForeignTableError, match=r"holds no batch, but .* has finished batch 4"):
        job.pair(output=empty)
    assert tree(empty) == {}


@pytest.mark.parametrize("planned", [-1, 0])
def test_a_table_without_a_list_is_never_taken_over(job, tmp_path, planned):
    """A folder of files that no stream has written is refused also before the first batch."""
    job.run(planned=planned, listed=-1, finished=-1)
    foreign = tmp_path / "foreign"
    (foreign / "topic=a" / "date=1").mkdir(parents=True)
    (foreign / "topic=a" / "date=1" / PART).write_bytes(b"")
    with pytest.raises(ForeignTableError, match="holds topic=a, which the checkpoint has not"):
        job.pair(output=foreign)


def test_tables_whose_numbers_fit_are_told_apart(job, tmp_path):
    """Two jobs that ran equally often do not swap their tables unnoticed."""
    other = Job(tmp_path, "other")
    other.begin()
    for each in (job, other):
        each.run(planned=3, listed=3, finished=3)
        each.pair()
    with pytest.raises(ForeignTableError, match="is the table of another checkpoint than"):
        job.pair(output=other.output)


@pytest.mark.parametrize("changed", [(), ("topic",), ("date", "topic"), ("topic", "date", "hour")])
def test_other_partition_columns_are_refused(job, changed):
    """Two layouts in one table are a table that readers refuse."""
    job.run(planned=0, listed=0, finished=0)
    before = tree(job.output, job.checkpoint)
    with pytest.raises(ConfigError, match=r"^--partition-by=.*, which is topic,date; give that"):
        job.pair(changed)
    assert tree(job.output, job.checkpoint) == before


def test_a_job_of_before_takes_its_columns_from_the_table(tmp_path):
    """Without the file, the folders of the table say it; from then on the file does."""
    job = Job(tmp_path)
    job.begin_spark()
    job.run(planned=1, listed=1, finished=1)
    file = job.output / "topic=a" / PART
    status = {"path": file.as_uri(), "action": "add"}
    (job.output / "_spark_metadata" / "1").write_text(f"v1\n{json.dumps(status)}")
    file.parent.mkdir()
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"--partition-by=topic,date: .*, which is topic; give"):
        job.pair()
    job.pair(("topic",))
    file.unlink()
    with pytest.raises(ConfigError, match="which is topic; give"):
        job.pair()


def test_the_file_is_in_both_folders_and_stays(job):
    """Further starts change nothing; a lost copy is made again from the other one."""
    job.run(planned=0, listed=0, finished=0)
    record = json.loads((job.checkpoint / RECORD_FILE).read_text())
    assert record["partition_by"] == ["topic", "date"]
    before = tree(job.output, job.checkpoint)
    assert before[job.output / RECORD_FILE] == before[job.checkpoint / RECORD_FILE]
    job.pair()
    assert tree(job.output, job.checkpoint) == before
    for folder in (job.output, job.checkpoint):
        (folder / RECORD_FILE).unlink()
        job.pair()
        assert tree(job.output, job.checkpoint) == before


def test_a_job_that_never_began_may_change_its_mind(tmp_path):
    """Until Spark has a checkpoint, nothing is fixed."""
    job = Job(tmp_path)
    job.pair(("topic",))
    job.begin(("date",))
    job.pair(("date",))


def test_a_damaged_file_is_one_sentence(job):
    """What cannot be read is not guessed."""
    path = job.checkpoint / RECORD_FILE
    for text in ("", "[]", "{}", '{"table_id":"a","partition_by":1}'):
        path.write_text(text)
        with pytest.raises(BadRecordError, match=r"_mailboat_job.json is damaged .*; remove it"):
            job.pair()
    path.unlink()
    job.pair()
