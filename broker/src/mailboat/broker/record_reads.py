"""Reads of single messages by their place, made away from the event loop.

Anybody may name any place of the log: what lies there may have to come from a disk that is slow or
hangs, and then whoever asked waits for it, and nobody else.
"""

from mailboat.broker.blocking_calls import on_thread
from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode


async def record_at(broker: BrokerContext, physical_offset: int) -> bytes | None:
    """Return the record that begins at a physical offset and is shown, None when none does.

    Raises:
        BrokerError: SYSTEM_BUSY, too many reads wait for the disk; SYSTEM_ERROR, it cannot be read.
    """
    if not broker.store_threads.can_read:
        raise BrokerError(
            ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many reads wait for the disk, try again later"
        )
    store = broker.store
    if physical_offset >= store.dispatch.dispatched_offset:
        return None
    try:
        return await on_thread(store.runners.reads, store.commit_log.reading_job(physical_offset))
    except OSError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"the message at physical offset {physical_offset} cannot be read: {error}",
        ) from error
