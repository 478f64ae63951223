"""`mailboat store`: an offline look at a store directory, mailboat's or RocketMQ's."""

import base64
import json
from typing import Final

import click

from mailboat.cli.main import debug_option
from mailboat.cli.output import payload_of
from mailboat.config import MessageStoreConfig
from mailboat.config.store import check_delay_levels
from mailboat.disk.real import RealDisk
from mailboat.errors import DamagedStoreError
from mailboat.model.message import MessageExt
from mailboat.model.printable import printable, printable_json
from mailboat.store.inspection import StoreInspector, StoreReport, queue_file_bytes
from mailboat.store.message_store import MessageStore

_BODY_PREVIEW_BYTES: Final = 60
_DEFAULTS: Final = MessageStoreConfig()


def _delay_levels(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if problem := check_delay_levels(text):
        raise click.BadParameter(f"{text!r} {problem}")
    return text


path_argument = click.argument(
    "path", type=click.Path(exists=True, file_okay=False, resolve_path=True)
)


@click.group()
def command() -> None:
    """Check, dump or repair a store directory.

    Works on directories of mailboat and of RocketMQ. `check` and `dump` change nothing; `repair`
    needs a directory that no broker uses.
    """


@command.command()
@path_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@debug_option
def check(path: str, *, as_json: bool) -> None:
    """Read every record and ConsumeQueue unit below PATH and say what is wrong.

    Exit code 4 when something is damaged.

    Example: mailboat store check ~/store
    """
    inspector = StoreInspector(RealDisk(is_read_only=True), path)
    try:
        report = inspector.check()
    finally:
        inspector.close()
    if as_json:
        click.echo(json.dumps(_as_json(report), separators=(",", ":")))
    else:
        _print_report(report)
    if not report.is_sound:
        raise DamagedStoreError(
            f"{path}: {len(report.damaged)} damaged ranges, {len(report.problems)} contradictions; "
            "`mailboat store repair` rebuilds what can be rebuilt"
        )


@command.command()
@path_argument
@click.option("--topic", help="Only messages of this topic.")
@click.option("--queue", "queue_id", type=int, help="Only messages of this queue id.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, body in base64.")
@debug_option
def dump(
    path: str, *, topic: str | None, queue_id: int | None, count: int | None, as_json: bool
) -> None:
    """Print the messages below PATH in the order of the log.

    Example: mailboat store dump ~/store --topic orders --count 10
    """
    inspector = StoreInspector(RealDisk(is_read_only=True), path)
    printed = 0

    def show(message: MessageExt) -> bool:
        nonlocal printed
        if topic in (None, message.topic) and queue_id in (None, message.queue_id):
            click.echo(_json_line(message) if as_json else _line(message))
            printed += 1
        return printed != count

    try:
        inspector.each_message(show)
    finally:
        inspector.close()


@command.command()
@path_argument
@click.option(
    "--rebuild", is_flag=True, help="Rebuild ConsumeQueues and IndexFiles from the CommitLog."
)
@click.option(
    "--delay-levels",
    default=_DEFAULTS.message_delay_level,
    callback=_delay_levels,
    help="messageDelayLevel of the RocketMQ broker that parked delayed messages; without it "
    "RocketMQ's own table.",
)
@debug_option
def repair(path: str, *, rebuild: bool, delay_levels: str) -> None:
    """Recover PATH as a starting broker would, and close it clean.

    The torn tail of a crash is cut; damaged bytes are copied to PATH/mailboat/quarantine and
    stepped over. When delayed messages are due stands in the log where mailboat has parked them;
    for those of RocketMQ it follows from its table.

    Example: mailboat store repair ~/store --rebuild
    """
    disk = RealDisk()
    inspector = StoreInspector(disk, path)
    paths, segment_bytes = inspector.paths, inspector.segment_bytes
    inspector.close()
    config = MessageStoreConfig(
        store_path_root_dir=path,
        mapped_file_size_consume_queue=queue_file_bytes(disk, paths),
        mapped_file_size_commit_log=segment_bytes or _DEFAULTS.mapped_file_size_commit_log,
        message_delay_level=delay_levels,
    )
    store = MessageStore(config, disk, store_host=bytes(8))
    store.open(rebuild=rebuild)
    recovery = store.recovery
    store.close()
    click.echo(
        f"{path}: log ends at {recovery.end}, {recovery.records} records read, "
        f"{recovery.torn_bytes} torn bytes cut, {len(recovery.damaged)} damaged ranges quarantined"
    )


def _print_report(report: StoreReport) -> None:
    click.echo(
        f"{report.path}: {report.records} records in {report.segments} segments of "
        f"{report.segment_bytes} bytes, physical offsets {report.start} to {report.end}, "
        f"{'stopped clean' if report.is_clean else 'in use or not stopped clean'}"
    )
    for queue in sorted(report.queues.values(), key=lambda item: (item.topic, item.queue_id)):
        click.echo(
            f"  {queue.topic} queue {queue.queue_id}: {queue.records} records "
            f"({queue.first_queue_offset} to {queue.last_queue_offset}), "
            f"ConsumeQueue ends at {queue.units}"
        )
    if report.torn_bytes:
        click.echo(
            f"torn: {report.torn_bytes} bytes at {report.end}, which were never acknowledged as "
            "durable; a start cuts them off"
        )
    for item in report.damaged:
        click.echo(f"damaged: {item.size_bytes} bytes at {item.physical_offset}: {item.reason}")
    for problem in report.problems:
        click.echo(f"wrong: {problem}")


def _as_json(report: StoreReport) -> dict[str, object]:
    return {
        "path": report.path,
        "segmentBytes": report.segment_bytes,
        "segments": report.segments,
        "minPhysicalOffset": report.start,
        "maxPhysicalOffset": report.end,
        "records": report.records,
        "tornBytes": report.torn_bytes,
        "clean": report.is_clean,
        "sound": report.is_sound,
        "damaged": [
            {"physicalOffset": d.physical_offset, "sizeBytes": d.size_bytes, "reason": d.reason}
            for d in report.damaged
        ],
        "problems": report.problems,
        "queues": [
            {
                "topic": q.topic,
                "queueId": q.queue_id,
                "records": q.records,
                "firstQueueOffset": q.first_queue_offset,
                "lastQueueOffset": q.last_queue_offset,
                "consumeQueueEnd": q.units,
            }
            for q in report.queues.values()
        ],
    }


def _line(message: MessageExt) -> str:
    body = payload_of(message)[:_BODY_PREVIEW_BYTES]
    return printable(
        f"{message.physical_offset} {message.topic}/{message.queue_id}@{message.queue_offset} "
        f"{message.message_id} tags={message.tags or '-'} keys={message.keys or '-'} {body!r}"
    )


def _json_line(message: MessageExt) -> str:
    return printable_json(
        {
            "topic": message.topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "physicalOffset": message.physical_offset,
            "messageId": message.message_id,
            "bornTimestamp": message.born_timestamp_ms,
            "storeTimestamp": message.store_timestamp_ms,
            "properties": message.properties,
            "body": base64.b64encode(payload_of(message)).decode(),
        },
        compact=True,
    )
