"""A message on its way into the store, and what became of it.

Source: apache/rocketmq store/MessageExtBrokerInner.java and base/PutMessageStatus.java.
"""

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from mailboat.store.consume_queue import ConsumeQueue


class PutStatus:
    """What became of a message."""

    PUT_OK: Final = 0
    FLUSH_DISK_TIMEOUT: Final = 1
    SERVICE_NOT_AVAILABLE: Final = 2
    CREATE_MAPPED_FILE_FAILED: Final = 3
    MESSAGE_ILLEGAL: Final = 4
    UNKNOWN_ERROR: Final = 5
    NOT_TRIED: Final = 6


class MessageInner(msgspec.Struct, gc=False):
    """One message to store; `put_messages` fills in the last four fields.

    `body` and `properties` are stored as they are (the store adds the checksum property);
    `born_host` has the 8 or 20 bytes of `mailboat.model.hosts`; `unique_key` and `keys` are
    indexed. What `sys_flag` says of the length of hosts is not looked at, and a message that it
    calls prepared or rolled back is illegal: half messages wait in a topic of their own.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    tags_code: int
    unique_key: str | None
    keys: str | None
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_store_ok: bool = True
    status: int = PutStatus.NOT_TRIED
    queue_offset: int = -1
    physical_offset: int = -1
    size_bytes: int = 0


class PreparedRecords(Protocol):
    """Messages as the compiled core prepares them: nothing of them has happened yet.

    They belong right behind the log's end, into its last segment, and the queue offsets in them are
    the next ones of their queues.
    """

    @property
    def size_bytes(self) -> int:
        """Of their records."""
        ...

    @property
    def queues(self) -> "Sequence[tuple[ConsumeQueue, int, bytes, int]]":
        """Each queue with how many messages it gets, their units, and where the last one ends."""
        ...

    @property
    def keys(self) -> bytes:
        """Rows for the index, as `IndexService.put_rows` takes them."""
        ...


def refuse(messages: list[MessageInner]) -> None:
    """Note that messages are not taken."""
    for message in messages:
        message.status = PutStatus.SERVICE_NOT_AVAILABLE


def refuse_topics(messages: list[MessageInner], going: Set[str]) -> list[MessageInner]:
    """Refuse messages of topics that are being deleted; return the others."""
    others = []
    for message in messages:
        if message.topic in going:
            message.status = PutStatus.MESSAGE_ILLEGAL
        else:
            others.append(message)
    return others


class BlockingRunner(Protocol):
    """Runs file-system calls that may block, away from the caller where it can."""

    def __call__(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run `job`, then call `done(result, error)` on the store's own thread."""
        ...


class Runners(NamedTuple):
    """Who runs what may block: each kind of call with threads of its own, where there are some."""

    files: BlockingRunner
    """Checkpoints and removals."""

    reservations: BlockingRunner
    """The next segment's room, for which sends will wait."""

    reads: BlockingRunner
    """Messages that are not in memory."""

    searches: BlockingRunner
    """Messages by key."""


def run_inline(job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
    """Run the job at once; for tools and tests."""
    try:
        result = job()
    except OSError as exc:
        done(None, exc)
        return
    done(result, None)
