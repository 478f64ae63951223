"""Reads of single messages by their place, made away from the event loop.

Anybody may name any place of the log: what lies there may have to come from a disk that is slow or
hangs, and then whoever asked waits for it, and nobody else.
"""

from mailboat.broker.blocking_calls import on_thread
from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode


async def record_at(broker: BrokerContext, physical_offset: int, host: str) -> bytes | None:
    """Return the record that begins at a physical offset and is shown, None when none does.

    It takes one of the places of the address `host`, which has a quarter of all.

    Raises:
        BrokerError: SYSTEM_BUSY, too many reads wait for the disk; SYSTEM_ERROR, it cannot be read.
    """
    threads, store = broker.store_threads, broker.store
    excess = threads.places.excess(host, 1)
    if excess is not None or not threads.can_read:
        raise too_many_reads(excess)
    if physical_offset >= store.dispatch.dispatched_offset:
        return None
    threads.places.take(host, 1)
    try:
        return await on_thread(store.runners.reads, store.commit_log.reading_job(physical_offset))
    except OSError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"the message at physical offset {physical_offset} cannot be read: {error}",
        ) from error
    finally:
        threads.places.give(host, 1)


def too_many_reads(excess: str | None) -> BrokerError:
    """Return the refusal of a read; `excess` is the limit that it would exceed, where one is."""
    return BrokerError(
        ResponseCode.SYSTEM_BUSY,
        "[OVERLOAD]too many reads wait for the disk"
        f"{'' if excess is None else f', {excess}'}, try again later",
    )
