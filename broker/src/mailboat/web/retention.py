"""`/api/v1/retention`: all that decides which messages go and whether more are taken, as one
document.

The numbers of the volume are those of the file system. The thresholds are compared with
`pressure_percent`, for which `preallocated_bytes` (room of the log without messages yet) count as
free.
"""

from typing import Final

import msgspec
from aiohttp import web

from mailboat.broker.controller import BrokerController
from mailboat.broker.pressure_watch import MAX_WAIT_S, MAX_WAITING
from mailboat.remoting.turns import in_turns
from mailboat.store.cleaner import READS_MAX, Cleaner
from mailboat.store.retention import REASONS, Retention, Threshold, used_percent
from mailboat.web.api import serving_broker
from mailboat.web.context import WebContext
from mailboat.web.lag import Steps
from mailboat.web.replies import reply

_SEGMENTS_A_STEP: Final = 200


class VolumeBody(msgspec.Struct):
    """The volume of the CommitLog as the file system counts it; `used_percent` as df rounds it."""

    path: str
    capacity_bytes: int
    used_bytes: int
    available_bytes: int
    inodes_total: int
    inodes_used: int
    used_percent: int


class ThresholdBody(msgspec.Struct):
    """Where a level is entered, whichever is reached first; 0 free bytes: only the percentage."""

    percent: int
    free_bytes: int


class ThresholdsBody(msgspec.Struct):
    """The levels; each is left `hysteresis_percent` below where it was entered."""

    expire: ThresholdBody
    force_clean: ThresholdBody
    reject_writes: ThresholdBody
    hysteresis_percent: int


class ActiveBody(msgspec.Struct):
    """The levels that the volume is above."""

    expire: bool
    force_clean: bool
    reject_writes: bool


class RetentionRulesBody(msgspec.Struct):
    """How long messages are kept; `effective_seconds` is the age at which a message that every
    group has read may go above `expire`."""

    file_reserved_time_hours: int
    read_file_reserved_time_hours: int
    delete_when: str
    effective_seconds: int


class ReclaimableBody(msgspec.Struct):
    """Bytes of whole segments that could go: past retention, or younger and read by every group."""

    expired_bytes: int
    read_bytes: int


class DeletedBody(msgspec.Struct):
    """What went since the start, by reason."""

    files: dict[str, int]
    bytes: dict[str, int]


class UnconsumedDeletedBody(msgspec.Struct):
    """Messages that went before a group had read them."""

    group: str
    topic: str
    messages: int


class SegmentBody(msgspec.Struct):
    """One CommitLog file; a time of -1 is not known."""

    physical_offset: int
    size_bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    is_read: bool


class GroupPositionBody(msgspec.Struct):
    """The oldest message that a group has not read, and how many it has not read in all queues."""

    group: str
    topic: str
    queue_id: int
    oldest_unread_physical_offset: int
    unread_messages: int


class RetentionDocument(msgspec.Struct):
    """The state of retention at one moment; counters since the start of the process."""

    broker_name: str
    timestamp_ms: int
    volume: VolumeBody | None
    pressure_percent: int | None
    preallocated_bytes: int
    commitlog_bytes: int
    min_physical_offset: int
    max_physical_offset: int
    oldest_message_timestamp_ms: int
    thresholds: ThresholdsBody
    active: ActiveBody
    refusal: str | None
    """Why this store has no room for messages; not that another replica leads."""

    retention: RetentionRulesBody
    reclaimable: ReclaimableBody
    unread_bytes: int
    deleted: DeletedBody
    unconsumed_deleted: list[UnconsumedDeletedBody]
    unconsumed_deleted_elsewhere: int
    writes_rejected: dict[str, int]
    segments: list[SegmentBody]
    groups: list[GroupPositionBody]
    groups_omitted: int


class PressureBody(msgspec.Struct):
    """The pressure now, and whether it has moved as far as was asked for."""

    has_moved: bool
    pressure_percent: int | None


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve the document, and who waits for it to change."""

    async def answer(_: web.Request) -> web.Response:
        return reply(await in_turns(retention_steps(serving_broker(context))))

    async def wait(request: web.Request) -> web.Response:
        broker = serving_broker(context)
        watch = broker.pressure_watch
        if watch.is_full:
            raise web.HTTPServiceUnavailable(
                text=f"{MAX_WAITING} requests wait for the disk already; ask again later"
            )
        has_moved = await watch.wait(
            _number(request, "from_percent", 0, 100),
            _number(request, "by_percent", 1, 100),
            _number(request, "timeout_seconds", 1, int(MAX_WAIT_S)),
        )
        return reply(PressureBody(has_moved, broker.store.retention.pressure_percent))

    async def release(_: web.Application) -> None:
        if context.broker is not None:
            context.broker.pressure_watch.release()

    app.router.add_get("/api/v1/retention", answer)
    app.router.add_get("/api/v1/retention/pressure", wait)
    app.on_shutdown.append(release)


def _number(request: web.Request, name: str, lowest: int, highest: int) -> int:
    text = request.query.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) < 4
    if not is_number or not lowest <= int(text) <= highest:
        raise web.HTTPBadRequest(text=f"{name} must be a number from {lowest} to {highest}")
    return int(text)


def retention_steps(broker: BrokerController) -> Steps[RetentionDocument]:
    """Put the document together; a large log has thousands of segments."""
    store, cleaner, reading = broker.store, broker.store.cleaner, broker.reading
    retention, log = store.retention, store.commit_log
    cleaner.refresh()
    segments = yield from _segments(cleaner, broker)
    reclaimable = cleaner.reclaimable_bytes()
    yield
    groups = reading.groups
    return RetentionDocument(
        broker_name=broker.settings.broker.broker_name,
        timestamp_ms=retention.now_ms(),
        volume=_volume(retention, store.paths.commit_log),
        pressure_percent=retention.pressure_percent,
        preallocated_bytes=log.preallocated_bytes,
        commitlog_bytes=log.end - log.start,
        min_physical_offset=log.start,
        max_physical_offset=log.end,
        oldest_message_timestamp_ms=segments[0].first_timestamp_ms if segments else -1,
        thresholds=_thresholds(retention),
        active=ActiveBody(
            retention.active.expire, retention.active.force_clean, retention.active.reject_writes
        ),
        refusal=store.own_refusal() or log.no_room,
        retention=_rules(broker),
        reclaimable=ReclaimableBody(reclaimable["expired"], reclaimable["consumed"]),
        unread_bytes=max(log.end - max(reading.position(), log.start), 0),
        deleted=DeletedBody(
            {reason: cleaner.files[reason] for reason in REASONS},
            {reason: cleaner.size_bytes[reason] for reason in REASONS},
        ),
        unconsumed_deleted=[
            UnconsumedDeletedBody(group, topic, messages)
            for (group, topic), messages in sorted(reading.lost.items())
        ],
        unconsumed_deleted_elsewhere=reading.lost_elsewhere,
        writes_rejected=store.writes_rejected,
        segments=segments,
        groups=[
            GroupPositionBody(
                item.group, item.topic, item.queue_id, item.physical_offset, item.unread_messages
            )
            for item in groups
        ],
        groups_omitted=reading.group_count - len(groups),
    )


def effective_seconds(retention: Retention) -> int:
    """Return the age at which a message that every group has read may go above `expire`."""
    return retention.read_reserved_hours * 3600


def _volume(retention: Retention, path: str) -> VolumeBody | None:
    usage = retention.usage
    if usage is None:
        return None
    return VolumeBody(
        path=path,
        capacity_bytes=usage.capacity_bytes,
        used_bytes=usage.used_bytes,
        available_bytes=usage.available_bytes,
        inodes_total=usage.inodes_total,
        inodes_used=usage.inodes_total - usage.inodes_free,
        used_percent=used_percent(usage),
    )


def _thresholds(retention: Retention) -> ThresholdsBody:
    def body(threshold: Threshold) -> ThresholdBody:
        return ThresholdBody(threshold.percent, threshold.free_bytes)

    found = retention.thresholds
    return ThresholdsBody(
        body(found.expire),
        body(found.force_clean),
        body(found.reject_writes),
        found.hysteresis_percent,
    )


def _rules(broker: BrokerController) -> RetentionRulesBody:
    retention = broker.store.retention
    return RetentionRulesBody(
        file_reserved_time_hours=retention.reserved_hours,
        read_file_reserved_time_hours=retention.read_reserved_hours,
        delete_when=broker.settings.store.delete_when,
        effective_seconds=effective_seconds(retention),
    )


def _segments(cleaner: Cleaner, broker: BrokerController) -> Steps[list[SegmentBody]]:
    log, position = broker.store.commit_log, broker.reading.known_position()
    first_times = cleaner.times.some_first_ms(READS_MAX)
    bodies = []
    present = list(log.segments)
    for index, segment in enumerate(present):
        if index % _SEGMENTS_A_STEP == 0:
            yield
        later = present[index + 1 : index + 2]
        # Nothing in a segment is newer than the first record behind it.
        newest_ms = segment.last_store_timestamp_ms or (
            first_times.get(later[0].start, -1) if later else log.last_store_timestamp_ms or -1
        )
        bodies.append(
            SegmentBody(
                physical_offset=segment.start,
                size_bytes=segment.size_bytes,
                first_timestamp_ms=first_times.get(segment.start, -1),
                last_timestamp_ms=newest_ms if segment.start < log.end else -1,
                is_read=min(segment.end, log.end) <= position,
            )
        )
    return bodies
