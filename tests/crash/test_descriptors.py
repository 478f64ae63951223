"""File descriptors used up: few are needed, a refusal names them, the store ends and begins."""

import subprocess
import sys
from pathlib import Path

import pytest

_COMMON = """
import os, resource, sys
from mailboat.config import MessageStoreConfig
from mailboat.disk.real import RealDisk
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
config = MessageStoreConfig(
    store_path_root_dir=sys.argv[1], mapped_file_size_commit_log=65_536,
    mapped_file_size_consume_queue=2000, max_hash_slot_num=10, max_index_num=20,
    disk_max_used_space_ratio=95, disk_space_clean_forcibly_ratio=100,
    disk_space_warning_level_ratio=100,
)
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")

def opened():
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    return store

def put(store, n):
    message = MessageInner(
        topic="T", queue_id=n % 40, body=b"x" * 16_000, properties=b"KEYS\\x01k%d\\x02" % n,
        tags_code=0, unique_key=None, keys="k%d" % n, flag=0, sys_flag=0, born_timestamp_ms=1,
        born_host=HOST)
    store.put_messages([message])
    return message.status

def flushed(store):
    store.background()
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)

def used():
    return len(os.listdir("/proc/self/fd"))

def check(store, count):
    for n in range(0, count, 37):
        assert store.get_message("T", n % 40, n // 40, 1, 1 << 20).message_count == 1, n
        assert len(store.query_message("T", "k%d" % n, 4, 0, 1 << 60).records) == 1, n
"""

_MANY_FILES = (
    _COMMON
    + """
store = opened()
for n in range(1200):
    assert put(store, n) == PutStatus.PUT_OK, (n, store.why_refused(), used())
    if n % 20 == 0:
        flushed(store)
assert len(store.commit_log.segments) > 250 and len(store.index.files) > 50
check(store, 1200)
store.close()
store = opened()
check(store, 1200)
assert put(store, 1200) == PutStatus.PUT_OK
store.close()
print("done")
"""
)

_ALL_IN_USE = (
    _COMMON
    + """
store = opened()
for n in range(120):
    assert put(store, n) == PutStatus.PUT_OK, store.why_refused()
    flushed(store)
check(store, 120)
taken = []

def take_all():
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        return

take_all()
for n in range(120, 140):
    if put(store, n) != PutStatus.PUT_OK:
        reason = store.why_refused()
        assert "file descriptors" in reason and "ulimit" in reason, reason
        break
    take_all()
else:
    raise SystemExit("never refused")
# At once after a refusal, as when the next segment could not be made ahead of need.
assert put(store, n) != PutStatus.PUT_OK
assert "file descriptors" in store.why_refused(), store.why_refused()
for fd in taken[:40]:
    os.close(fd)
del taken[:40]
import time
time.sleep(0.3)
assert put(store, n) == PutStatus.PUT_OK, store.why_refused()
check(store, n)
flushed(store)
check(store, n)
take_all()
store.close()
assert not os.path.exists(sys.argv[1] + "/abort")
for fd in taken:
    os.close(fd)
store = opened()
assert store.recovery.records == 0
check(store, n + 1)
store.close()
print("done")
"""
)


@pytest.mark.parametrize(("script", "limit"), [(_MANY_FILES, 64), (_ALL_IN_USE, 96)])
def test_a_store_lives_with_few_descriptors(tmp_path: Path, script: str, limit: int) -> None:
    """More segments and index files than descriptors; all of them taken by others."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), str(limit)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
