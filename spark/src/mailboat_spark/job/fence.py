"""One driver at a time: a lock in the checkpoint and in the output, held by Java.

Java is what writes, and it may live on for a moment when the Python driver is killed, so the lock
must not be Python's. It is a lock of the file system (POSIX, of the whole file): it ends with the
process that holds it, however that ends, it needs no right on the Kubernetes API and no clock, and
it holds between containers, pods and machines wherever they share the file system. Behind it stand
a Deployment of strategy Recreate (a CronJob that forbids concurrency), and Spark itself, which ends
a query that finds a batch in its checkpoint that it did not plan.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from mailboat.errors import MailboatError

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "_mailboat_job.lock"
_POLL_S: Final = 0.5


class CheckpointBusyError(MailboatError):
    """Another job holds the checkpoint or the output."""


@contextmanager
def hold(
    spark: SparkSession,
    folder: Path,
    timeout_s: float,
    *,
    give_up: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Hold a folder for this session's Java; wait at most so long for another that holds it.

    Args:
        spark: its Java process takes the lock.
        folder: the folder, which is made if need be.
        timeout_s: how long to wait.
        give_up: asked while waiting; true ends the wait.

    Raises:
        CheckpointBusyError: another process holds it, or the file system knows no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    deadline_s = time.monotonic() + timeout_s
    file, lock = _try_lock(spark, path)
    if lock is None:
        logger.info("%s is held by %s; waiting up to %g s", folder, _holder(path), timeout_s)
    while lock is None:
        if give_up() or time.monotonic() > deadline_s:
            raise CheckpointBusyError(
                f"{folder} is in use by {_holder(path)}; "
                "end that job, or give this one another checkpoint and output"
            )
        time.sleep(_POLL_S)
        file, lock = _try_lock(spark, path)
    path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    try:
        yield
    finally:
        try:
            lock.release()
            file.close()
        except (Py4JError, OSError):
            logger.debug("Java has ended, and the lock with it")


def _try_lock(spark: SparkSession, path: Path) -> tuple[Any, Any]:
    """Return Java's file and lock; no lock when somebody else has it."""
    jvm: Any = spark._jvm
    try:
        file = jvm.java.io.RandomAccessFile(str(path), "rw")
        try:
            lock = file.getChannel().tryLock()
        except Py4JJavaError as exc:
            file.close()
            kind = exc.java_exception.getClass().getSimpleName()
            if kind == "OverlappingFileLockException":
                return None, None
            raise
    except Py4JJavaError as exc:
        reason = exc.java_exception.getMessage()
        raise CheckpointBusyError(
            f"{path} cannot be locked ({reason}); the checkpoint needs a file system with locks"
        ) from exc
    if lock is None:
        file.close()
    return file, lock


def _holder(path: Path) -> str:
    try:
        return path.read_text("utf-8") or "another job"
    except OSError:
        return "another job"
