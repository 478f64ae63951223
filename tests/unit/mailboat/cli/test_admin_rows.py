"""Rows and sentences that the administration commands make of what they found."""

import json
from collections import Counter

import click
import pytest

from mailboat.cli.cluster.settings import parse_settings
from mailboat.cli.cluster.show import runtime_row
from mailboat.cli.message.browse import Look, line
from mailboat.cli.message.redrive import report_row, summary
from mailboat.cli.message.rows import short_row
from mailboat.cli.message.send import parse_properties
from mailboat.cli.message.show import body_bytes
from mailboat.cli.offset.commands import move_row
from mailboat.cli.output import message_row
from mailboat.client.admin.messages import PlacedMessage
from mailboat.client.admin.offsets import OffsetMove
from mailboat.client.admin.redrive import RedriveReport
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
QUEUE = MessageQueue("T", "broker-a", 1)
STORED_MS = 1_700_000_000_123


def message(body: bytes = b"hello", stored_ms: int = STORED_MS) -> MessageExt:
    """Return a stored message."""
    properties = {"UNIQ_KEY": "ID", "TAGS": "a"}
    return MessageExt("T", body, 1, 5, 1000, 0, 0, 0, 0, 0, HOST, stored_ms, HOST, 0, 0, properties)


@pytest.mark.parametrize("name", ["getTransferredTps", "getTransferedTps"])
def test_numbers_of_a_broker(name: str):
    """The rates of the last 10 s, the messages since midnight, the disk in percent."""
    row = runtime_row(
        {
            "brokerVersionDesc": "V4_9_7",
            "putTps": "10.04 20 30",
            name: "7.55 8 9",
            "msgPutTotalTodayNow": "1000",
            "msgPutTotalTodayMorning": "400",
            "msgGetTotalTodayNow": "50",
            "msgGetTotalTodayMorning": "50",
            "commitLogDiskRatio": "0.256",
            "earliestMessageTimeStamp": str(STORED_MS),
        }
    )
    assert row == {
        "version": "V4_9_7",
        "in_tps": 10.0,
        "out_tps": 7.5,
        "in_today": 600,
        "out_today": 0,
        "disk_used": "26 %",
        "oldest_message": "2023-11-14 22:13:20.123Z",
    }


def test_a_broker_that_tells_nothing_has_an_empty_row():
    """What is missing or no number is None, never an error."""
    row = runtime_row({"putTps": "", "commitLogDiskRatio": "x", "earliestMessageTimeStamp": "?"})
    assert set(row.values()) == {None}


def parse(parser, *texts: str):
    """Call the callback of an option that takes NAME=VALUE."""
    command = click.Command("x")
    return parser(click.Context(command), click.Option(["--x"]), texts)


@pytest.mark.parametrize("parser", [parse_settings, parse_properties])
def test_names_and_values(parser):
    """Everything after the first = is the value, which may be empty."""
    assert parse(parser, "a=b=c", "d=") == {"a": "b=c", "d": ""}
    for text in ("a", "=b", ""):
        with pytest.raises(click.BadParameter, match="is not of the form"):
            parse(parser, text)


def test_a_setting_is_one_line():
    """A line break would smuggle in another setting."""
    with pytest.raises(click.BadParameter):
        parse(parse_settings, "a=b\nstorePathRootDir=/x")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(None, 20, (10, 0)), (5, 12, (10, 8)), (15, 3, (5, 10)), (20, 20, (0, 0))],
)
def test_lag_counts_only_what_is_there(before: int | None, after: int, expected: tuple[int, int]):
    """In a queue from 10 to 20, offsets below 10 are as good as 10."""
    row = move_row(OffsetMove(QUEUE, before, after, 10, 20), after)
    assert (row["lag"], row["new_lag"]) == expected
    assert (row["old_offset"], row["new_offset"]) == (before, after)


def test_time_range_holds_both_ends():
    """Brokers that find times inexactly give messages outside of the range, which are left out."""
    start = StartPoint(ConsumeFromWhere.TIMESTAMP, 100)
    look = Look(start, 200, SubscriptionData("T"), 20)
    found = [ms for ms in (99, 100, 200, 201) if look.takes(message(stored_ms=ms))]
    assert found == [100, 200]


def test_followed_message_is_a_line():
    """With and without --json a message is one line, whatever its body holds."""
    found = PlacedMessage(QUEUE, message(b"a\nb"))
    assert line(found, as_json=False) == "2023-11-14 22:13:20.123Z broker-a/1@5 ID a a b"
    row = json.loads(line(found, as_json=True))
    assert (row["body"], row["broker"], row["queue_offset"]) == ("a\nb", "broker-a", 5)


def test_long_bodies_are_cut_in_tables():
    """A table shows at most 80 characters of a body; bytes are counted."""
    assert short_row(message(b"x" * 81))["body"] == "x" * 77 + "..."
    assert short_row(message(b"x" * 80))["body"] == "x" * 80
    assert short_row(message(b"\xff\xfe"))["body"] == "<2 bytes>"
    assert short_row(message())["broker_queue"] == "127.0.0.1:10911 1"
    assert short_row(message(), "broker-a")["broker_queue"] == "broker-a 1"


@pytest.mark.parametrize("body", [b"hello", b"\xff\x00", b""])
def test_bodies_survive_their_json(body: bytes):
    """The bytes of a body can be got back from its row."""
    assert body_bytes(message_row(message(body))) == body


def report(**options: object) -> RedriveReport:
    """Return what a redrive of five letters, of which three were chosen, reports."""
    fields = {"dry_run": False, "read": 5, "redriven": Counter({"U": 1, "T": 2}), **options}
    return RedriveReport("C", "%DLQ%C", "mailboat-redrive-C", **fields)  # type: ignore[arg-type]


def test_redrive_is_summed_up():
    """People get a sentence, scripts the same numbers under stable names."""
    assert summary(report()) == (
        "redrove 3 of 5 dead letters of group C: 2 to T, 1 to U; the position is kept as group "
        "mailboat-redrive-C"
    )
    dry = summary(report(dry_run=True))
    assert dry == "would redrive 3 of 5 dead letters of group C: 2 to T, 1 to U"
    none = summary(report(read=0, redriven=Counter()))
    assert none == "group C has no dead letters after position mailboat-redrive-C"
    assert report_row(report()) == {
        "group": "C",
        "dead_letter_topic": "%DLQ%C",
        "position_group": "mailboat-redrive-C",
        "dry_run": False,
        "read": 5,
        "redriven": 3,
        "not_selected": 2,
        "to": [{"topic": "T", "messages": 2}, {"topic": "U", "messages": 1}],
    }
