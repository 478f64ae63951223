"""Requests to a broker as bytes, without a client between, and the files that it keeps."""

from __future__ import annotations

import itertools
import json
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_RUNTIME_INFO, _PULL, _MAX_OFFSET, _TOPICS, _CLUSTER = 28, 11, 30, 21, 106
_OFFSETS, _GROUPS = 43, 201
_TIMEOUT_S = 20.0
_FILLER_MAGIC = 0xCBD43194
_numbers = itertools.count(1)


class Answer(NamedTuple):
    """What a server answered."""

    code: int
    remark: str | None
    fields: dict[str, str]
    body: bytes


def ask(
    address: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
) -> Answer:
    """Send one request on a connection of its own and return the answer."""
    head = {
        "code": code,
        "flag": 0,
        "language": "JAVA",
        "opaque": next(_numbers),
        "version": 399,
        "extFields": {key: str(value) for key, value in (fields or {}).items()},
    }
    header = json.dumps(head).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        connection.sendall(
            struct.pack(">II", len(header) + 4 + len(body), len(header)) + header + body
        )
        with connection.makefile("rb") as answer:
            length, header_length = struct.unpack(">II", answer.read(8))
            found = json.loads(answer.read(header_length & 0xFFFFFF))
            body = answer.read(length - 4 - (header_length & 0xFFFFFF))
    return Answer(found["code"], found.get("remark"), found.get("extFields") or {}, body)


def log_end(address: str) -> int:
    """Return where a broker's log ends, -1 where it cannot say: 4.9 in its first second."""
    answer = ask(address, _RUNTIME_INFO)
    if answer.code == 1 and "NoSuchElementException" in (answer.remark or ""):
        return -1
    assert answer.code == 0, answer
    table = json.loads(answer.body)["table"]
    return int(table["commitLogMaxOffset"])


def topic_names(address: str) -> set[str]:
    """Return the topics that a broker knows."""
    return set(json.loads(ask(address, _TOPICS).body)["topicConfigTable"])


def group_offsets(address: str, topic: str, group: str) -> dict[int, int]:
    """Return how far a group has read a topic, by queue, as a broker tells its slaves."""
    table = _bare_keys(ask(address, _OFFSETS).body)["offsetTable"]
    return {int(queue): read for queue, read in table.get(f"{topic}@{group}", {}).items()}


def has_group_offset(address: str, topic: str, group: str, queue_offset: int) -> bool:
    """Tell whether a broker knows a group, and that it has read a topic up to an offset."""
    groups = ask(address, _GROUPS).body.decode()
    read = group_offsets(address, topic, group)
    return group in groups and set(read.values()) == {queue_offset}


def brokers_of(namesrv: str, name: str) -> dict[int, str]:
    """Return the addresses of a group of brokers at a name server, by brokerId."""
    group = _bare_keys(ask(namesrv, _CLUSTER).body)["brokerAddrTable"].get(
        name, {"brokerAddrs": {}}
    )
    return {int(number): address for number, address in group["brokerAddrs"].items()}


def _bare_keys(body: bytes) -> Any:
    """Read JSON in which Java has written integers as keys without quotes."""
    return json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', body.decode()))


def queue_end(address: str, topic: str, queue_id: int) -> int:
    """Return the queue offset behind the last message that a broker shows of a queue."""
    answer = ask(address, _MAX_OFFSET, {"topic": topic, "queueId": queue_id})
    return int(answer.fields["offset"])


def queue_records(address: str, topic: str, queue_id: int) -> bytes:
    """Return all records of a queue, as a broker sends them to a consumer."""
    place = {"topic": topic, "queueId": queue_id}
    end = queue_end(address, topic, queue_id)
    pieces, at = [], 0
    while at < end:
        fields = place | {
            # Every broker has it from the beginning; a slave makes no group.
            "consumerGroup": "TOOLS_CONSUMER",
            "queueOffset": at,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer = ask(address, _PULL, fields)
        assert answer.code == 0, (answer, at, end)
        pieces.append(answer.body)
        at = int(answer.fields["nextBeginOffset"])
    return b"".join(pieces)


def segments(store_dir: Path, end: int) -> bytes:
    """Return the log of a store below a physical offset, as its files have it."""
    files = sorted((store_dir / "commitlog").iterdir())
    first = int(files[0].name)
    return b"".join(path.read_bytes() for path in files)[: end - first]


def records(store_dir: Path, end: int) -> bytes:
    """Return the log as `segments` does, with zeros behind the heads of the fillers."""
    files = sorted((store_dir / "commitlog").iterdir())
    size = files[0].stat().st_size
    log = bytearray(segments(store_dir, end))
    for begin in range(0, len(log), size):
        at, segment_end = begin, min(begin + size, len(log))
        while at < segment_end:
            length, magic = struct.unpack_from(">iI", log, at)
            if magic == _FILLER_MAGIC:
                log[at + 8 : segment_end] = bytes(segment_end - at - 8)
            assert length > 0
            at += length
    return bytes(log)


def queued(store_dir: Path, topic: str) -> int:
    """Return how many messages of a topic a Java broker has queued, as its files have it."""
    files = (store_dir / "consumequeue" / topic).glob("*/*")
    units = (unit for path in files for unit in struct.iter_unpack(">qiq", path.read_bytes()))
    return sum(size > 0 for _, size, _ in units)


def wait_queued(addresses: Iterable[str], topic: str, queues: int, count: int) -> None:
    """Wait until brokers have as many messages of a topic queued as were sent.

    RocketMQ has what it acknowledges in its CommitLog, and in its queues a little later.
    """
    for address in addresses:
        wait_until(
            lambda address=address: (
                sum(queue_end(address, topic, queue) for queue in range(queues)) >= count
            ),
            60.0,
            f"{address} has queued {count} messages",
        )


def wait_until(holds: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Wait until something holds of a server, which says nothing when it does."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not in {timeout_s:g} s: {what}"
        time.sleep(0.05)
