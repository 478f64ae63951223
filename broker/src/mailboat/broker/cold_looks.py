"""Looks of requests at messages that only the disk may have, by generators that take turns.

A disk may be slow, or hang. So another thread reads such a message before the loop does: whoever
looks at it waits (`mailboat.remoting.turns.Wait`), and nobody else. What requests wait for has a
limit in all and by address, as the reads of pulls have.
"""

from collections.abc import Generator, Iterable
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.record_reads import place_of_read
from mailboat.broker.warm_reads import Waits
from mailboat.remoting.turns import Wait
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.message_store import MessageStore
from mailboat.store.warming import Begin

LOOKS_TOGETHER: Final = 50
"""So many messages are read for one look at many queues before others have their turns."""

Steps = Generator[Wait | None, None, int]
"""The steps of a look, for `mailboat.remoting.turns.in_turns`."""


class Looks:
    """The looks of one request.

    Each raises BrokerError, SYSTEM_BUSY, where too many reads wait for the disk.
    """

    def __init__(self, broker: BrokerContext, host: str) -> None:
        """Look for the address `host` at the messages of `broker`."""
        self._threads = broker.store_threads
        self._store = broker.store
        self._host = host

    def warm(self, queue: ConsumeQueue | None, queue_offset: int, units: int = 1) -> Waits:
        """Wait until units of a queue are in memory, and the message of the first one."""
        return self._wait(self._store.warming.reading(queue, queue_offset, units))

    def warm_all(self, places: Iterable[tuple[ConsumeQueue | None, int]]) -> Waits:
        """Wait until messages, by queue and queue offset, are in memory: `LOOKS_TOGETHER` at most.

        Those of which the store time is known are left out.
        """
        wanted = [
            (queue, queue_offset)
            for queue, queue_offset in places
            if queue is not None and queue.known_time[0] != queue_offset
        ]
        return self._wait(self._store.warming.reading_all(wanted))

    def timestamp(self, topic: str, queue_id: int, queue_offset: int) -> Steps:
        """Return a message's store time, -1 when it is not there.

        Raises:
            OSError: a file cannot be read.
        """
        yield from self.warm_all([(self._store.queues.get(topic, queue_id), queue_offset)])
        return store_timestamp(self._store, topic, queue_id, queue_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> Steps:
        """Find a queue offset by store time; see `Lookup.offset_by_time_steps`.

        0 where there is no such queue.

        Raises:
            OSError: a file cannot be read.
        """
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return 0

        def before_look(queue_offset: int, units: int) -> Waits:
            return self.warm(queue, queue_offset, units)

        return (
            yield from self._store.lookup.offset_by_time_steps(
                queue, timestamp_ms, upper=upper, before_look=before_look
            )
        )

    def _wait(self, begin: Begin | None) -> Waits:
        if begin is not None:
            with place_of_read(self._threads, self._host):
                yield from Wait(begin).steps()


def store_timestamp(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """Return the store time of a message that is in memory, -1 when it is not there.

    That of the last look at a queue is remembered: mostly it is the last message, of a queue that
    few write to.

    Raises:
        OSError: a file cannot be read.
    """
    queue = store.queues.get(topic, queue_id)
    if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
        return -1
    known_offset, time_ms = queue.known_time
    if known_offset != queue_offset:
        time_ms = store.store_timestamp(topic, queue_id, queue_offset)
        if time_ms >= 0:
            queue.known_time = queue_offset, time_ms
    return time_ms
