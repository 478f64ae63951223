"""From what a user asked for to an offset for each queue."""

from collections.abc import Mapping

from mailboat.errors import ConfigError
from mailboat.model.message_queue import MessageQueue
from mailboat_spark.offsets import EARLIEST, LATEST, QueueOffsets, StartingOffsets
from mailboat_spark.planning import QueueBounds


def resolve_offsets(
    asked: StartingOffsets,
    bounds: Mapping[MessageQueue, QueueBounds],
    committed: Mapping[MessageQueue, int],
    *,
    option: str,
) -> QueueOffsets:
    """Return an offset for each queue of `bounds`.

    Args:
        asked: `earliest`, `latest`, `group` (the group's offset, the first one where it has none)
            or offsets by queue; a queue that is not named is read from its first, to its last.
        bounds: what the queues hold.
        committed: the group's stored offsets, needed for `group` only.
        option: the option's name, for errors.

    Raises:
        ConfigError: a queue is named that does not exist.
    """
    unknown = sorted(asked.by_queue.keys() - bounds.keys())
    if unknown:
        name = f"{unknown[0].topic} {unknown[0].broker_name}:{unknown[0].queue_id}"
        raise ConfigError(option, asked.kind, f"queue {name} does not exist")
    is_end = option == "endingOffsets"
    return {
        queue: _resolve(asked, queue, bound, committed.get(queue), is_end=is_end)
        for queue, bound in bounds.items()
    }


def _resolve(
    asked: StartingOffsets,
    queue: MessageQueue,
    bound: QueueBounds,
    stored: int | None,
    *,
    is_end: bool,
) -> int:
    if asked.kind == "latest":
        return bound.maximum
    if asked.kind == "earliest":
        return bound.minimum
    if asked.kind == "group":
        return bound.minimum if stored is None else stored
    queue_offset = asked.by_queue.get(queue, LATEST if is_end else EARLIEST)
    if queue_offset == EARLIEST:
        return bound.minimum
    return bound.maximum if queue_offset == LATEST else queue_offset
