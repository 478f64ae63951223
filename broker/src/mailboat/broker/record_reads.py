"""Reads of single messages by their place, made away from the event loop.

Anybody may name any place of the log: what lies there may have to come from a disk that is slow or
hangs, and then whoever asked waits for it, and nobody else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from mailboat.broker.blocking_calls import StoreThreads, on_thread
from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode


async def record_at(broker: BrokerContext, physical_offset: int, host: str) -> bytes | None:
    """Return the record that begins at a physical offset and is shown, None when none does.

    It takes one of the places of the address `host`, which has a quarter of all.

    Raises:
        BrokerError: SYSTEM_BUSY, too many reads wait for the disk; SYSTEM_ERROR, it cannot be read.
    """
    store = broker.store
    with place_of_read(broker.store_threads, host):
        if physical_offset >= store.dispatch.dispatched_offset:
            return None
        job = store.commit_log.reading_job(physical_offset)
        try:
            return await on_thread(store.runners.reads, job)
        except OSError as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the message at physical offset {physical_offset} cannot be read: {error}",
            ) from error


@contextmanager
def place_of_read(threads: StoreThreads, host: str) -> Iterator[None]:
    """Take one of the places that the address `host` has for reads, as long as this is open.

    Raises:
        BrokerError: SYSTEM_BUSY, too many reads wait for the disk.
    """
    excess = threads.places.excess(host, 1)
    if excess is not None or not threads.can_read:
        limit = "" if excess is None else f", {excess}"
        raise BrokerError(
            ResponseCode.SYSTEM_BUSY,
            f"[OVERLOAD]too many reads wait for the disk{limit}, try again later",
        )
    threads.places.take(host, 1)
    try:
        yield
    finally:
        threads.places.give(host, 1)
