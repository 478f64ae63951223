"""Finding messages by key, away from the store's thread.

How long a search takes depends on how many messages carry the key, and each of them may lie on a
cold disk. So the store's thread takes down what there is to search, and another does it: the index
gives candidates, and the records themselves are read and checked.

Source: apache/rocketmq store/DefaultMessageStore.java (queryMessage), which returns other keys of
the same hash as well.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from mailboat.disk import Disk, UnreadableError
from mailboat.model.properties import PropertyName, decode_properties
from mailboat.model.record import RecordParts
from mailboat.store.commit_log import CommitLog
from mailboat.store.file_pool import FilePool
from mailboat.store.index_service import IndexService
from mailboat.store.message_inner import BlockingRunner
from mailboat.store.record_source import find_segment
from mailboat.store.segment_reader import read_record_at

# The same hash may belong to other keys, and a record may be indexed twice: ask for more.
_CANDIDATES: Final = 4
_FILES_A_SEARCH: Final = 8
# Of all that may wait, only messages made of keys take longer.
_BUILD_SLICE_S: Final = 0.02


class QueryResult(NamedTuple):
    """Records found by key, oldest first, and how far the index reaches."""

    records: list[bytes]
    index_last_update_timestamp_ms: int
    index_last_update_physical_offset: int


class KeyQuery(NamedTuple):
    """Messages of a topic with a key, stored in [begin, end]: the newest ones.

    At most so many messages and bytes, the first message whatever its size.
    """

    topic: str
    key: str
    max_messages: int
    max_bytes: int
    begin_ms: int
    end_ms: int


def search_job(
    disk: Disk, commit_log: CommitLog, index: IndexService, query: KeyQuery
) -> Callable[[], QueryResult]:
    """Make a call that finds messages; it may run on any thread.

    What is damaged or removed meanwhile is left out; it raises OSError where files cannot be read
    now. Keys that wait to be indexed are not found.
    """
    candidates = index.search(
        query.topic, query.key, _CANDIDATES * query.max_messages, query.begin_ms, query.end_ms
    )
    segments = list(commit_log.segments)
    reaches = (index.end_timestamp_ms, index.end_physical_offset)

    def search() -> QueryResult:
        pool = FilePool(disk, _FILES_A_SEARCH)
        records: list[bytes] = []
        size_bytes = 0
        try:
            for physical_offset in sorted(set(candidates(pool)), reverse=True):
                segment = find_segment(segments, physical_offset)
                if len(records) >= query.max_messages or segment is None:
                    continue
                try:
                    view, parts = read_record_at(segment.opened_in(pool), physical_offset)
                except (ValueError, UnreadableError, FileNotFoundError):
                    continue
                if not _matches(view, parts, query):
                    continue
                size_bytes += parts.header.size_bytes
                if records and size_bytes > query.max_bytes:
                    break
                records.append(bytes(view[: parts.properties_end]))
        finally:
            pool.close()
        records.reverse()
        return QueryResult(records, *reaches)

    return search


SearchDone = Callable[[QueryResult | None, BaseException | None], None]


class Searches:
    """Searches that run elsewhere, each as soon as the index has what was visible when it came."""

    def __init__(self, disk: Disk, commit_log: CommitLog, index: IndexService) -> None:
        """Search one store."""
        self._disk = disk
        self._commit_log = commit_log
        self._index = index
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def search(
        self, run: BlockingRunner, query: KeyQuery, visible_end: int, done: SearchDone
    ) -> None:
        """Have a runner search what lies below a physical offset, now or soon."""

        def start() -> None:
            run(search_job(self._disk, self._commit_log, self._index, query), done)

        if not self._waiting:
            self._index.build_for_search(_BUILD_SLICE_S)
        self._waiting.append((visible_end, start))
        self._start()

    def go_on(self) -> None:
        """Start those that have waited long enough."""
        if self._waiting and self._commit_log.failure is not None:
            # The background of a store that has failed does nothing else.
            self._index.build_for_search(_BUILD_SLICE_S)
        self._start()

    def _start(self) -> None:
        waiting = self._waiting
        while waiting and self._index.has_all_below(waiting[0][0]):
            waiting.popleft()[1]()


def _matches(view: memoryview, parts: RecordParts, query: KeyQuery) -> bool:
    if not query.begin_ms <= parts.store_timestamp_ms <= query.end_ms:
        return False
    if bytes(view[parts.topic_at : parts.topic_end]) != query.topic.encode():
        return False
    text = str(view[parts.properties_at : parts.properties_end], "utf-8", "replace")
    properties = decode_properties(text)
    if properties.get(PropertyName.UNIQ_KEY) == query.key:
        return True
    return query.key in properties.get(PropertyName.KEYS, "").split(" ")
