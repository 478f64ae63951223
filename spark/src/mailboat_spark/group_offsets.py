"""What brokers are told of how far a query's group has read.

Brokers count a group as a reader of the queues that it has offsets in, for its lag and for
retention. The query itself goes by its checkpoint only: nothing here may end it.
"""

import logging
import time
from typing import Final

from mailboat.errors import MailboatError
from mailboat_spark.client_thread import shared_client
from mailboat_spark.offsets import QueueOffsets
from mailboat_spark.options import SourceOptions

logger = logging.getLogger(__name__)

_ASK_S: Final = 3.0
# An idle query plans a hundred times a second; what failed is not repeated each time.
PAUSE_S: Final = 5.0


class GroupOffsets:
    """Stores a query's offsets for its group, if the options say so."""

    def __init__(self, options: SourceOptions) -> None:
        """Keep what is needed; nothing is connected, because this object is pickled."""
        self._options = options
        self._stored: QueueOffsets = {}
        self._beginnings: QueueOffsets = {}
        """Where the query begins in queues that the group may have no offset in yet."""
        self._failed: QueueOffsets = {}
        self._again_at_s = 0.0
        self._asking_failed = False

    def begin(self, starts: QueueOffsets) -> None:
        """Store where the query begins in queues that the group has no offset in.

        What a group has stays as it is until the first batch ends: a start is not the end of one.
        """
        if not self._options.commit_group_offsets:
            return
        self._beginnings |= {
            queue: queue_offset
            for queue, queue_offset in starts.items()
            if queue not in self._stored
        }
        self._store_beginnings()

    def store(self, offsets: QueueOffsets) -> None:
        """Store the end of a finished batch; also what could not be stored before."""
        if not self._options.commit_group_offsets:
            return
        for queue, queue_offset in offsets.items():
            if self._beginnings.get(queue) != queue_offset:
                self._beginnings.pop(queue, None)
        self._store_beginnings()
        self._commit(
            {
                queue: queue_offset
                for queue, queue_offset in offsets.items()
                if self._stored.get(queue) != queue_offset and queue not in self._beginnings
            }
        )

    def _store_beginnings(self) -> None:
        wanted = self._due(self._beginnings)
        if not wanted:
            return
        client = shared_client(self._options.namesrv, self._options.access)
        asked = client.client.committed(self._options.group, wanted, time.monotonic() + _ASK_S)
        try:
            found = client.run(asked)
        except MailboatError as exc:
            if not self._asking_failed:
                logger.warning(
                    "whether group %s has offsets is unknown, asked again later: %s",
                    self._options.group,
                    exc,
                )
            self._asking_failed = True
            self._put_off(wanted)
            return
        self._asking_failed = False
        self._stored |= {queue: wanted.pop(queue) for queue in found}
        self._commit(wanted)
        for queue in self._stored.keys() & self._beginnings.keys():
            del self._beginnings[queue]

    def _commit(self, offsets: QueueOffsets) -> None:
        due = self._due(offsets)
        if not due:
            return
        client = shared_client(self._options.namesrv, self._options.access)
        stored = client.run(client.client.commit(self._options.group, due))
        self._stored |= {queue: due.pop(queue) for queue in stored}
        self._put_off(due)

    def _due(self, offsets: QueueOffsets) -> QueueOffsets:
        """Return the offsets without those that failed a moment ago."""
        if time.monotonic() >= self._again_at_s:
            self._failed.clear()
        return {
            queue: queue_offset
            for queue, queue_offset in offsets.items()
            if self._failed.get(queue) != queue_offset
        }

    def _put_off(self, offsets: QueueOffsets) -> None:
        if offsets:
            self._failed |= offsets
            self._again_at_s = time.monotonic() + PAUSE_S
