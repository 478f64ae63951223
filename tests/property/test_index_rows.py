"""Keys in an IndexFile: the compiled core makes of them what the definition does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailboat import core
from mailboat.disk import read_file
from mailboat.store import index_file
from mailboat.store.file_pool import FilePool
from mailboat.store.index_file import IndexFile, index_file_bytes
from mailboat.store.index_rows import ROW, DefinedSlots, index_hash
from mailboat.testing.simulated_disk import SimulatedDisk

_MAX_INT = 2**31 - 1
_INT64 = st.integers(-(2**63), 2**63 - 1)
# Few values, so that keys share slots within a call; and the edges of Java's int.
_HASHES = st.one_of(
    st.integers(0, 6),
    st.sampled_from([2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32 - 6]),
    st.integers(0, 2**32 - 1),
)


def _pack(keys: list[tuple[int, int]]) -> bytes:
    return b"".join([ROW.pack(*key) for key in keys])


@pytest.mark.skipif(not core.FOUND.is_used, reason="the compiled core is not used")
@settings(max_examples=500)
@given(
    st.lists(st.tuples(_HASHES, _INT64), max_size=40),
    st.sampled_from([1, 2, 3, 7, 1000]).flatmap(
        lambda count: st.one_of(
            st.just(bytes(4 * count)), st.binary(min_size=4 * count, max_size=4 * count)
        )
    ),
    st.one_of(st.integers(0, 300), st.integers(0, _MAX_INT - 40)),
    st.one_of(st.integers(0, 300), st.just(_MAX_INT)),
)
def test_slots_and_entries_are_those_of_the_definition(
    keys: list[tuple[int, int]], before: bytes, entry_count: int, seconds: int
) -> None:
    """Whatever the slots hold and however many keys of the call fall into one."""
    results = []
    for make in (DefinedSlots, core.native.IndexSlots):
        slots = make(len(before) // 4)
        assert slots.copy() == bytes(len(before))
        slots.load(before)
        put = slots.put(_pack(keys), entry_count, seconds)
        newest = [slots.newest(index_hash(key_hash)) for key_hash, _ in keys]
        results.append((put, slots.copy(), newest))
    assert results[0] == results[1]


@pytest.mark.skipif(not core.FOUND.is_used, reason="the compiled core is not used")
def test_the_core_puts_nothing_that_it_cannot_count() -> None:
    """There is no entry behind number 2**31 - 1, and no key without a slot."""
    slots = core.native.IndexSlots(1)
    with pytest.raises(ValueError, match="more entries"):
        slots.put(_pack([(1, 1)]), _MAX_INT, 0)
    assert slots.copy() == bytes(4)
    with pytest.raises(ValueError, match="not all of them"):
        slots.load(bytes(8))
    with pytest.raises(ValueError, match="no slots"):
        core.native.IndexSlots(0)


@pytest.mark.parametrize("is_compiled", [False, True])
@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(_HASHES, min_size=1, max_size=30), max_size=6), st.sampled_from([5, 1000]))
def test_keys_put_together_make_the_file_of_keys_put_alone(
    is_compiled: bool, groups: list[list[int]], slot_count: int
) -> None:
    """Entries, slots and header of an index file do not tell how many keys came at once."""
    if is_compiled and not core.FOUND.is_used:
        pytest.skip("the compiled core is not used")
    files: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(index_file, "make_slots", DefinedSlots)
        for is_together in (True, False):
            disk = SimulatedDisk()
            fd = disk.open("/index", create=True)
            disk.ftruncate(fd, index_file_bytes(slot_count, 400))
            file = IndexFile(disk, FilePool(disk, 8), "/index", slot_count, 400)
            for number, group in enumerate(groups):
                keys = [(h, number * 1000 + at) for at, h in enumerate(group)]
                for rows in [_pack(keys)] if is_together else [ROW.pack(*key) for key in keys]:
                    file.put(rows, 1000 * number, 1000 * number + 999)
            save = file.snapshot()
            assert (save is None) == (not groups)
            if save is not None:
                save()
            files.append(read_file(disk, "/index"))
    assert files[0] == files[1]
