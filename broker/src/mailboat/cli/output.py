"""Tables for people, JSON for scripts."""

import logging
import sys
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from mailboat.errors import IllegalMessageError
from mailboat.model.message import MessageExt
from mailboat.model.printable import printable, printable_json, printable_lines
from mailboat.model.properties import PropertyName

logger = logging.getLogger(__name__)

_WIDE: Final = 10_000
_HEX_WIDTH: Final = 16
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
        table.add_row(*(Text(printable(_cell(row[column]))) for column in columns))
    # A pipe has no width: nothing is cut or wrapped there.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE)
    console.print(table)


def print_section(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print one of several tables under a title; without rows, say that there are none."""
    title = printable(title)
    if rows:
        click.echo(f"\n{title}")
        print_rows(rows, columns, as_json=False)
    else:
        click.echo(f"\n{title}: none")


def print_record(record: dict[str, Any]) -> None:
    """Print the fields of one thing below each other."""
    width = max(map(len, record), default=0)
    for name, value in record.items():
        text = printable_lines(_cell(value)).replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{printable(name).replace('_', ' '):<{width}}  {text}")


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(printable_json(value, indent=2))


def message_row(message: MessageExt) -> dict[str, Any]:
    """Return a message as a JSON object; `body_base64` stands for a body that is not UTF-8 text.

    What brokers and clients add to the properties by themselves is left out.
    """
    row: dict[str, Any] = {}
    payload = payload_of(message)
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


def payload_of(message: MessageExt) -> bytes:
    """Return a body, decompressed; one that is not compressed as its flag says, as it is stored.

    Anybody may have sent such a one, and it must not hide the messages behind it.
    """
    try:
        return message.payload()
    except IllegalMessageError as error:
        logger.warning(
            "%s queue=%d queue_offset=%d: %s; it is shown as it is stored",
            message.topic,
            message.queue_id,
            message.queue_offset,
            error,
        )
        return message.body


def body_text(payload: bytes) -> str:
    """Return a body for people: as text where it is UTF-8 that a terminal bears, else in hex."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return hex_dump(payload)
    if any(unicodedata.category(char) == "Cc" and char not in "\n\r\t" for char in text):
        return hex_dump(payload)
    return text


def hex_dump(payload: bytes) -> str:
    """Return bytes as lines of an offset, 16 bytes in hex, and what of them is printable ASCII."""
    lines = []
    for at in range(0, len(payload), _HEX_WIDTH):
        part = payload[at : at + _HEX_WIDTH]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{_HEX_WIDTH * 3 - 1}}  {shown}")
    return "\n".join(lines)


def time_text(timestamp_ms: int) -> str:
    """Return a time in UTC with milliseconds, `-` for none, and the number for no possible time."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        # Clients may have sent any number as a time, such as nanoseconds.
        return f"{timestamp_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
