"""Tables for people, JSON for scripts."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from mailboat.model.message import MessageExt
from mailboat.model.properties import PropertyName

_WIDE: Final = 10_000
_BROKERS_OWN: Final = frozenset(
    {
        PropertyName.TAGS,
        PropertyName.KEYS,
        PropertyName.UNIQ_KEY,
        PropertyName.WAIT,
        PropertyName.CLUSTER,
        PropertyName.MESSAGE_REGION,
        PropertyName.TRACE_ON,
        PropertyName.CRC32,
    }
)


def print_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print rows as a table with these columns, or as a JSON array with all their fields."""
    if as_json:
        print_json(list(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        values = [row[column] for row in rows]
        is_number = bool(values) and all(isinstance(value, int | float) for value in values)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    # A pipe has no width: nothing is cut or wrapped there.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE)
    console.print(table)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def message_row(message: MessageExt) -> dict[str, Any]:
    """Return a message as a JSON object; `body_base64` stands for a body that is not UTF-8 text.

    What brokers and clients add to the properties by themselves is left out.
    """
    row: dict[str, Any] = {}
    payload = message.payload()
    try:
        row["body"] = payload.decode()
    except UnicodeDecodeError:
        import base64

        row["body_base64"] = base64.b64encode(payload).decode()
    row["key"] = message.keys
    row["tags"] = message.tags
    row["properties"] = {
        name: value for name, value in message.properties.items() if name not in _BROKERS_OWN
    }
    row["topic"] = message.topic
    row["queue_id"] = message.queue_id
    row["queue_offset"] = message.queue_offset
    row["message_id"] = message.message_id
    row["offset_message_id"] = message.offset_message_id
    row["store_time"] = time_text(message.store_timestamp_ms)
    row["store_timestamp_ms"] = message.store_timestamp_ms
    row["reconsume_times"] = message.reconsume_times
    return row


def time_text(timestamp_ms: int) -> str:
    """Return a time in UTC with milliseconds, or `-` where there is none."""
    if timestamp_ms <= 0:
        return "-"
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return "-" if value is None else str(value)
