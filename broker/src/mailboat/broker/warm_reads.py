"""Reads of the broker's own tasks that wait until another thread has read from the disk first."""

from collections.abc import Generator

from mailboat.remoting.turns import Wait
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.message_store import MessageStore

Waits = Generator[Wait, None, None]
"""What `mailboat.remoting.turns.in_turns` and `TaskProgress.finish` wait for."""


def warm_steps(
    store: MessageStore,
    queue: ConsumeQueue | None,
    queue_offset: int,
    units: int = 1,
    messages: int = 1,
) -> Waits:
    """Wait until units of a queue are in memory, and messages of them; see `Warming.reading`.

    Nothing limits it: it is for the broker's own tasks.
    """
    begin = store.warming.reading(queue, queue_offset, units, messages)
    if begin is not None:
        yield from Wait(begin).steps()


class QueuePositions:
    """The queues of a store, for `mailboat.broker.reading_progress`."""

    def __init__(self, store: MessageStore) -> None:
        """Look at the queues of `store`."""
        self.queue_keys, self.min_offset = store.queue_keys, store.min_offset
        self.max_offset = store.max_offset
        self._store = store

    def physical_position(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> Generator[Wait | None, None, int | None]:
        """Return where a message lies in the log, None when the queue does not say.

        Raises:
            OSError: the queue's file cannot be read.
        """
        store = self._store
        yield from warm_steps(store, store.queues.get(topic, queue_id), queue_offset, messages=0)
        return store.physical_position(topic, queue_id, queue_offset)
