"""Promises of mailboat.disk.json_file."""

import errno
import json
import os
import re
from random import Random
from typing import Any

import pytest

from mailboat.disk import read_file
from mailboat.disk.json_file import JsonFile, to_pretty_json
from mailboat.errors import DamagedStoreError
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk

PATH = "/store/config/topics.json"
OLD, NEW = b'{"version":1}', b'{"version":2}'


def load_json(content: bytes) -> Any:
    """Decode what the tests save."""
    return json.loads(content)


def saved_disk(*contents: bytes) -> SimulatedDisk:
    """Return a disk on which these versions were saved one after the other."""
    disk = SimulatedDisk()
    file = JsonFile(disk, PATH)
    for content in contents:
        file.save(content)
    return disk


def damage(disk: SimulatedDisk, path: str) -> None:
    """Cut a file short."""
    fd = disk.open(path)
    disk.ftruncate(fd, 5)
    disk.close(fd)


def test_what_was_saved_is_loaded() -> None:
    """A saved table is read back by the next start."""
    disk = saved_disk(OLD, NEW)
    assert JsonFile(disk, PATH).load(load_json) == {"version": 2}


def test_a_store_without_the_file_loads_nothing() -> None:
    """A new store has no tables, and that is no error."""
    assert JsonFile(SimulatedDisk(), PATH).load(load_json) is None


def test_the_previous_version_is_kept() -> None:
    """`.bak` holds the version before the present one, as in RocketMQ."""
    disk = saved_disk(OLD, NEW)
    assert read_file(disk, PATH + ".bak") == OLD


def test_the_previous_version_survives_a_restart() -> None:
    """The first save after a restart keeps what was there as `.bak`."""
    disk = saved_disk(OLD)
    file = JsonFile(disk, PATH)
    file.load(load_json)
    file.save(NEW)
    assert read_file(disk, PATH + ".bak") == OLD


def test_an_unchanged_table_is_not_written() -> None:
    """Saving the same content again does not touch the disk, nor push the old version out."""
    disk = saved_disk(OLD, NEW)
    file = JsonFile(disk, PATH)
    file.load(load_json)
    changes = disk.changes
    file.save(NEW)
    assert disk.changes == changes
    assert read_file(disk, PATH + ".bak") == OLD


def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new_table() -> None:
    """Whenever the power goes during a save, a whole version is there afterwards."""
    outcomes = set()
    for changes in range(40):
        for seed in range(5):
            disk = saved_disk(b'{"version":0}', OLD)
            file = JsonFile(disk, PATH)
            file.load(load_json)
            disk.cut_power_after(changes)
            try:
                file.save(NEW)
            except PowerCutError:
                finished = False
            else:
                finished = True
            crashed = disk.crash(Random(seed))
            value = JsonFile(crashed, PATH).load(load_json)
            assert value in ([{"version": 2}] if finished else [{"version": 1}, {"version": 2}])
            outcomes.add((finished, value["version"]))
    assert outcomes == {(False, 1), (False, 2), (True, 2)}


def test_a_damaged_file_falls_back_to_the_previous_version() -> None:
    """Content that is no JSON is replaced by the version before it."""
    disk = saved_disk(OLD, NEW)
    damage(disk, PATH)
    assert JsonFile(disk, PATH).load(load_json) == {"version": 1}


def test_only_the_previous_version_is_enough() -> None:
    """RocketMQ has a moment in which only `.bak` exists; such a directory opens."""
    disk = saved_disk(OLD, NEW)
    disk.unlink(PATH)
    assert JsonFile(disk, PATH).load(load_json) == {"version": 1}


def test_a_damaged_file_never_replaces_the_good_previous_version() -> None:
    """The save after a fallback leaves the only good old version where it is."""
    disk = saved_disk(OLD, NEW)
    damage(disk, PATH)
    file = JsonFile(disk, PATH)
    file.load(load_json)
    file.save(b'{"version":3}')
    assert read_file(disk, PATH + ".bak") == OLD
    assert read_file(disk, PATH) == b'{"version":3}'


def test_two_damaged_versions_are_refused_by_name() -> None:
    """Nothing is guessed: the error names both files and what to do."""
    disk = saved_disk(OLD, NEW)
    damage(disk, PATH)
    damage(disk, PATH + ".bak")
    with pytest.raises(DamagedStoreError, match=r"topics\.json cannot be read.*\.bak.*put back"):
        JsonFile(disk, PATH).load(load_json)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EMFILE])
def test_a_file_that_cannot_be_opened_is_not_damaged(error: int) -> None:
    """Going on with the old version because of a permission would lose what is in the new one."""
    disk = FaultyDisk(saved_disk(OLD, NEW), Fault(("open",), 1, error))
    with pytest.raises(OSError, match=re.escape(os.strerror(error))):
        JsonFile(disk, PATH).load(load_json)


@pytest.mark.parametrize("error", [errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA])
def test_a_bad_block_falls_back_to_the_previous_version(error: int) -> None:
    """A disk that cannot read the file any more is damage like any other, by whatever number."""
    disk = FaultyDisk(saved_disk(OLD, NEW), Fault(("pread",), 1, error))
    assert JsonFile(disk, PATH).load(load_json) == {"version": 1}


def test_a_block_that_goes_bad_stops_no_later_save() -> None:
    """The version that is lost cannot be kept; the one before it is, and the new one is saved."""
    disk = SimulatedDisk()
    file = JsonFile(disk, PATH)
    file.save(OLD)
    file.save(NEW)
    disk.file(PATH).make_unreadable(0, 1)
    file.save(b'{"version":3}')
    assert read_file(disk, PATH) == b'{"version":3}'
    assert read_file(disk, PATH + ".bak") == OLD


def test_a_full_disk_leaves_the_old_table_and_heals() -> None:
    """A save that finds no room raises, changes nothing, and works once there is room."""
    disk = FaultyDisk(saved_disk(OLD))
    file = JsonFile(disk, PATH)
    file.load(load_json)
    disk.inject(Fault(("pwrite",), 1, errno.ENOSPC, sticky=True))
    with pytest.raises(OSError, match="No space"):
        file.save(NEW)
    assert JsonFile(disk, PATH).load(load_json) == {"version": 1}
    disk.heal()
    file.save(NEW)
    assert JsonFile(disk, PATH).load(load_json) == {"version": 2}


@pytest.mark.parametrize("call", ["rename", "fsync_dir"])
def test_a_table_that_goes_back_after_a_failed_save_is_written(call: str) -> None:
    """A save that fails late may have put the new table there: one as it was before it is no
    unchanged one then."""
    disk = FaultyDisk(saved_disk(OLD))
    file = JsonFile(disk, PATH)
    file.load(load_json)
    disk.inject(Fault((call,), 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        file.save(NEW)
    file.save(OLD)
    assert read_file(disk, PATH) == OLD


def test_pretty_json_is_the_same_json() -> None:
    """Indenting changes no value."""
    assert json.loads(to_pretty_json(b'{"a":{"0":1,"t":"\xc3\xa9"}}')) == {"a": {"0": 1, "t": "é"}}
