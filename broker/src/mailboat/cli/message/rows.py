"""How messages are printed: a table of many, the fields of one."""

from collections.abc import Sequence
from typing import Any, Final

import click

from mailboat.cli.output import (
    message_row,
    payload_of,
    print_json,
    print_record,
    print_rows,
    time_text,
)
from mailboat.model.message import MessageExt

BODY_WIDTH: Final = 80
COLUMNS: Final = (
    "store_time",
    "topic",
    "broker_queue",
    "queue_offset",
    "message_id",
    "tags",
    "body",
)


def print_messages(messages: Sequence[MessageExt], *, as_json: bool, what: str) -> None:
    """Print what was found; `what` says in words what was looked for."""
    if as_json:
        print_json([message_row(message) for message in messages])
    elif not messages:
        click.echo(f"no message with {what}", err=True)
    elif len(messages) == 1:
        print_record(full_row(messages[0]))
    else:
        print_rows([short_row(message) for message in messages], COLUMNS, as_json=False)


def full_row(message: MessageExt) -> dict[str, Any]:
    """Return every field of a message; see `message_row`."""
    row = message_row(message)
    row["born_time"] = time_text(message.born_timestamp_ms)
    row["born_timestamp_ms"] = message.born_timestamp_ms
    row["born_address"] = message.born_address
    row["store_address"] = message.store_address
    row["physical_offset"] = message.physical_offset
    row["store_size_bytes"] = message.store_size_bytes
    row["flag"] = message.flag
    row["sys_flag"] = message.sys_flag
    return row


def short_row(message: MessageExt, broker: str | None = None) -> dict[str, Any]:
    """Return a message as a line of a table: the body cut and on one line.

    Without the broker's name, which no record tells, its address stands for it.
    """
    row = message_row(message)
    text = row.get("body")
    if text is None:
        text = f"<{len(payload_of(message))} bytes>"
    if len(text) > BODY_WIDTH:
        text = text[: BODY_WIDTH - 3] + "..."
    row["body"] = " ".join(text.splitlines()) if text else ""
    row["broker_queue"] = f"{broker or message.store_address} {message.queue_id}"
    return row
