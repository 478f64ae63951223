"""Rounds of sends through the compiled core store and answer what Python alone does."""

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from broker_with_core import LEARNED, MAX_BODY_BYTES, PEERS, TOPICS, OneBroker, WithCore
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from mailboat.broker import dispatcher as dispatcher_module
from mailboat.broker import schedule as schedule_module
from mailboat.broker.processors import send_rules
from mailboat.model.hosts import encode_host

# -- what clients send ------------------------------------------------------------------------


def literal(random: Random, value: str) -> str:
    """Write a text as one of the ways in which clients do."""
    return json.dumps(value, ensure_ascii=random.random() < 0.5)


VALUES = {
    "KEYS": ["key-1", "a b", "a  b ", "\u00e9 \u6c34", "\U0001f600", " ", "k" * 70],
    "UNIQ_KEY": ["7F00000100001234", "u", "\u6c34", "\U0001f600\u00e9"],
    "TAGS": ["TagA", "Monday", "TagB||x", "\u6c34", "\U0001f600", "a-longer-tag-0123456789"],
    "WAIT": ["true", "true", "false"],
    "color": ["red", 'back\\slash/"quoted"', "\t\n\0", "1=2", "WAIT", "x" * 300],
}
ODD_PROPERTIES = [
    "DELAY\x010\x02", "CLUSTER\x01c\x02", "TRAN_MSG\x01no\x02", "__CRC32#\x010\x02", "KEYS\x01\x02",
    "WAIT\x01maybe\x02", "WAIT\x01false\x02", "WAIT\x01true\x02", "\x01v\x02", "name", "n\x01",
    "\x02",
    "a\x01b\x01c\x02", "color\x01green\x02", "KEYS\x01twice\x02", "TAGS\x01twice\x02",
    "UNIQ_KEY\x01\x02",
    "UNIQ_KEY\x01second\x02", "KEYS\x01" + " ".join(map(str, range(80))) + "\x02",
    "XWAIT\x01true\x02",
]  # fmt: skip


DELAYED = [[f"DELAY\x01{level}\x02"] for level in (1, 1, 2, 3, 18)]
HALF = ["PGROUP\x01pg\x02", "TRAN_MSG\x01true\x02"]
PARKED = [*DELAYED, HALF, HALF]
ODD_PARKED = [
    *[[f"DELAY\x01{level}\x02"] for level in ("0", "19", "-1", "01", "99999999999")],
    ["DELAY\x01x\x02"], ["DELAY\x011\x02"] * 2, ["TRAN_MSG\x01true\x02"],
    ["PGROUP\x01pg\x02", "TRAN_MSG\x01TRUE\x02"], [*HALF, "DELAY\x011\x02"], HALF * 2,
    ["DELAY\x012\x02", "REAL_TOPIC\x01x\x02"], [*HALF, "REAL_QID\x011\x02"],
    [*HALF, "__transactionId__\x01id\x02"], ["DELAY\x011\x02", "color\x01green\x02"],
    ["DELAY\x012\x02", "TRANSACTION_CHECK_TIMES\x013\x02"],
    [*HALF, "TRANSACTION_CHECK_TIMES\x013\x02"],
    ["DELAY\x011\x02", *[f"p{n}\x01v\x02" for n in range(40)]],
]  # fmt: skip


def properties(random: Random, *, is_odd: bool, parked: Sequence[str] = ()) -> str:
    """Return a properties text."""
    names = random.sample(list(VALUES), random.randint(0, len(VALUES)))
    if "UNIQ_KEY" not in names:
        names.insert(random.randint(0, len(names)), "UNIQ_KEY")
    if random.random() < 0.2:
        names.append("WAIT" if "WAIT" not in names else "other")
    entries = [f"{n}\x01{random.choice(VALUES.get(n, ['v']))}\x02" for n in names]
    if is_odd and random.random() < 0.8:
        entries.insert(random.randint(0, len(entries)), random.choice(ODD_PROPERTIES))
    elif is_odd:
        entries = [entry for entry in entries if not entry.startswith("UNIQ_KEY")]
    elif random.random() < 0.15:
        entries.insert(random.randint(0, len(entries)), "also\x01WAIT\x02")
    if parked:
        for entry in parked:
            entries.insert(random.randint(0, len(entries)), entry)
    text = "".join(entries)
    return text[:-1] if random.random() < 0.3 else text


def batch(random: Random, *, is_odd: bool) -> bytes:
    """Return the body of a batch."""
    items: list[bytes] = []
    odd_one = random.randrange(4) if is_odd else -1
    has_same_text = random.random() < 0.5
    text = properties(random, is_odd=False).encode()
    for number in range(random.randint(1, 5)):
        if not has_same_text:
            text = properties(random, is_odd=False).encode()
        if number == odd_one:
            odd = properties(random, is_odd=True).encode()
            text = random.choice([odd, b"\xff" + text, b"", text])
        body = bytes([number]) * random.choice([0, 1, 50, 300])
        head = struct.pack(
            ">iiiii", 22 + len(body) + len(text), 0, 0, random.randint(-5, 5), len(body)
        )
        items.append(head + body + struct.pack(">H", len(text)) + text)
    data = b"".join(items)
    if is_odd and random.random() < 0.3:
        return data[: random.randrange(len(data) + 1)]
    return data


LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip
ODD_VALUES = [
    "null", "true", "1", '"1"', "1.0", "1e3", '"1.0"', '"+1"', '" 1"', '"01"', "-1", '"-1"', "01",
    "2147483648", '"99999999999"', '"TRUE"', '"False"', '""', "{}", '{"a":1}', "[1]", '"null"',
    "-0",
    "12345678901234567890", '"\\ud800"', '"\\ud83d\\ude00"', '"\x01"', '"\\x"', '"broker-b"',
    '"%RETRY%g"', '"SCHEDULE_TOPIC_XXXX"', '"no topic"', '"\\u0041"', "tru", "", "1e999",
]  # fmt: skip


def binary_header(
    random: Random, kind: str, code: int, flag: int, opaque: int, members: list[tuple[str, str]]
) -> bytes:
    """Return a binary header whose fields have the values of JSON literals."""
    fields = b""
    for name, literal in members:
        try:
            value = json.loads(literal)
        except ValueError:
            value = literal
        text = "" if value is None else value if isinstance(value, str) else literal
        is_optional = LONG_NAMES.get(name, name) in ("reconsumeTimes", "maxReconsumeTimes")
        if random.random() < 0.1 and (is_optional or kind == "fields"):
            text = ""  # That is how null is written.
        key = json.loads(f'"{name}"').encode()
        data = text.encode("utf-8", "surrogatepass")
        fields += struct.pack(f">h{len(key)}si", len(key), key, len(data)) + data
    remark = random.choice([b"", b"", b"why", "\u6c34".encode(), b"\xff" * (kind == "header")])
    remark_bytes, fields_bytes = len(remark), len(fields)
    if kind == "header":
        odd = random.choice([-1, 1, 2, 1 << 20])
        change = random.randrange(5)
        remark_bytes += odd * (change == 0)
        fields_bytes += odd * (change == 1)
        flag = odd if change == 2 else flag
        code = random.choice([10, 310, 320, 11, 12, -1]) if change == 3 else code
        fields += b"\0\1" * (change == 4)
    head = struct.pack(">hbhiii", code, 0, 401, opaque, flag, remark_bytes)
    return head + remark + struct.pack(">i", fields_bytes) + fields


def request(random: Random, kind: str, opaque: int) -> bytes:
    """Return a frame; its kind says how odd it is."""
    is_batch = random.random() < 0.3
    is_long = random.random() < 0.25
    code = 10 if is_long else random.choice([310, 320]) if is_batch else 310
    text = properties(random, is_odd=kind == "properties" and not is_batch)
    size = random.choice([1, 10, 100, 900])
    if kind == "body":
        size = random.choice([0, MAX_BODY_BYTES - 1, MAX_BODY_BYTES, MAX_BODY_BYTES + 1])
    body = bytes([opaque & 0xFF]) * size
    if is_batch:
        body = batch(random, is_odd=kind == "properties")
    elif kind in ("parked", "odd parked"):
        text = properties(
            random, is_odd=False, parked=random.choice(PARKED if kind == "parked" else ODD_PARKED)
        )
    number = (lambda n: str(n)) if random.random() < 0.2 else (lambda n: f'"{n}"')
    fields = {
        "a": '"PG"', "b": json.dumps(random.choice(LEARNED)), "c": '"TBW102"', "d": number(8),
        "e": number(random.randrange(3)),
        "f": number(random.choice([0, 0, 1, 0x30, 0x701, 12, -1])),
        "g": number(random.choice([1_700_000_000_000, -1])), "h": number(random.randint(-3, 3)),
        "i": literal(random, text), "j": number(random.choice([0, 0, 2])),
        "k": random.choice(['"false"', "false", '"true"']), "l": number(16),
        "m": random.choice(['"true"', "true"]) if is_batch else random.choice(['"false"', "false"]),
        "n": random.choice(["null", '"broker-a"']) if random.random() < 0.5 else "",
    }  # fmt: skip
    for name in "ijklmn":
        is_needed = (name == "m" and is_batch and code != 320) or name == "i"
        if not fields[name] or (random.random() < 0.2 and not is_needed):
            del fields[name]
    if kind == "queue":
        fields["e"] = number(random.choice([-1, 3, 4, 5, 6, 100]))
        fields["b"] = json.dumps(random.choice(TOPICS))
        if random.random() < 0.3:
            fields |= {"b": json.dumps(LEARNED[0]), "e": '"0"', "n": '"broker-b"'}
    members = [(LONG_NAMES[name] if is_long else name, value) for name, value in fields.items()]
    members += [("bname", '"elsewhere"'), ("ns", "1")][: 0 if is_long else random.randrange(3)]
    if kind == "fields":
        place = random.randrange(len(members))
        change = random.choice(["value", "value", "value", "drop", "twice", "add", "escape"])
        name, value = members[place]
        if change == "value":
            members[place] = name, random.choice(ODD_VALUES)
        elif change == "drop":
            del members[place]
        elif change == "twice":
            members.append((name, value))
        elif change == "add":
            members.append((random.choice([*LONG_NAMES, *LONG_NAMES.values(), "z"]), value))
        else:
            members[place] = f"\\u{ord(name[0]):04x}{name[1:]}", value
    if random.random() < 0.3:
        random.shuffle(members)
    colon, comma = (":", ",") if random.random() < 0.8 else (" : ", " ,\n")
    ext_fields = comma.join(f'"{name}"{colon}{value}' for name, value in members)
    flag = random.choice([0, 0, 0, 2])
    outer = [
        ("code", str(code)), ("extFields", "{" + ext_fields + "}"), ("flag", str(flag)),
        ("language", '"JAVA"'), ("opaque", str(opaque)), ("version", "401"),
    ]  # fmt: skip
    if random.random() < 0.2:
        random.shuffle(outer)
    if kind == "header":
        place = random.randrange(len(outer) + 1)
        names = ["flag", "opaque", "version", "code", "serialize_type", "remark", "extFields"]
        odd = random.choice([*ODD_VALUES, "2", "3", "4", "11", "34", "1"])
        if random.random() < 0.5 and place < len(outer):
            outer[place] = outer[place][0], odd
        else:
            outer.insert(place, (random.choice(names), odd))
    inner = comma.join(f'"{name}"{colon}{value}' for name, value in outer)
    header = ("{" + inner + "}").encode("utf-8", "surrogatepass")
    is_binary = random.random() < 0.3
    if is_binary:
        header = binary_header(random, kind, code, flag, opaque, members)
    if kind == "bytes":
        place = random.randrange(len(header))
        header = header[:place] + bytes([random.randrange(256)]) + header[place + 1 :]
    length = 4 + len(header) + len(body)
    prefix = bytearray(struct.pack(">II", length, is_binary << 24 | len(header)))
    if kind == "damage":
        prefix[random.randrange(8)] ^= 1 << random.randrange(8)
    return bytes(prefix) + header + body


ODD_KINDS = ["properties", "fields", "header", "queue", "body", "bytes"]
_kind = st.sampled_from(
    ["plain"] * 12 + ["parked"] * 6 + ["odd parked"] * 2 + ODD_KINDS * 2 + ["damage"]
)
_round = st.lists(
    st.tuples(
        st.integers(0, len(PEERS) - 1),
        st.lists(st.tuples(_kind, st.integers(0, 2**32)), max_size=5),
        st.sampled_from([0, 0, 0, 0, 1, 5, 300]),
    ),
    min_size=1,
    max_size=4,
)
SETTINGS = settings(
    max_examples=300, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)


def make_reads(
    plan: list[tuple[int, list[tuple[str, int]], int]], tails: dict[int, bytes], opaque: int
) -> list[tuple[int, bytes]]:
    """Return what connections send in one round, the last bytes of each perhaps a round later."""
    streams: dict[int, bytes] = {}
    for number, kinds, cut in plan:
        data = streams.get(number, tails.pop(number, b""))
        for kind, seed in kinds:
            opaque += 1
            data += request(Random(seed), kind, opaque if seed & 1 else -opaque)
        streams[number] = data
        tails[number] = b""
        if cut and len(data) > cut:
            streams[number], tails[number] = data[:-cut], data[-cut:]
    return [(number, data) for number, data in streams.items() if data]


# -- what the core does with it ---------------------------------------------------------------


@pytest.fixture(autouse=True)
def neither_time_nor_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request wait for the next round of the loop, and let any queue be the first."""
    monkeypatch.setattr(send_rules.random, "randrange", lambda _: 0)
    monkeypatch.setattr(dispatcher_module, "ROUND_S", 1e6)
    monkeypatch.setattr(schedule_module, "_SLICE_S", 1e6)


@SETTINGS
@given(
    plan=st.lists(_round, min_size=1, max_size=5),
    append_crc=st.booleans(),
    host=st.sampled_from([("10.0.0.2", 10911), ("2001:db8::1", 10911)]),
    flush=st.sampled_from(["ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"]),
    message_limit=st.sampled_from([1, 4, 512, 512, 512]),
    is_flushed=st.booleans(),
)
def test_rounds_store_and_answer_what_python_does(
    plan: list[list[tuple[int, list[tuple[str, int]], int]]],
    append_crc: bool,
    host: tuple[str, int],
    flush: str,
    message_limit: int,
    is_flushed: bool,
) -> None:
    """Log, queues, keys, counters and answers are the same, whoever handled a frame."""

    async def run() -> None:
        store_host = encode_host(*host)
        core = WithCore(store_host, flush, append_crc=append_crc, message_limit=message_limit)
        plain = OneBroker(store_host, flush, append_crc=append_crc)
        tails: dict[int, bytes] = {}
        for number, round_ in enumerate(plan):
            for part in core.round(make_reads(round_, tails, number * 1000)):
                plain.feed(part)
        expected = plain.end(is_flushed=is_flushed)
        found = core.end(is_flushed=is_flushed)
        for what, value in expected.items():
            assert found[what] == value, what

    asyncio.run(run())


@pytest.mark.parametrize("is_v6", [False, True])
def test_ordinary_parked_sends_are_taken_and_restored(is_v6: bool) -> None:
    """None of them is left to Python, neither when it is sent nor when its time has come."""

    async def run() -> None:
        host = encode_host("2001:db8::1" if is_v6 else "10.0.0.2", 10911)
        core = WithCore(host, "ASYNC_FLUSH", append_crc=True, message_limit=512)
        for number, parked in enumerate(PARKED):
            text = "".join(
                ["UNIQ_KEY\x01U\x02WAIT\x01true\x02KEYS\x01a b\x02TAGS\x01t\x02", *parked]
            )
            fields = {
                "a": "P", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "4", "g": "1",
                "h": "0", "i": text,
            }  # fmt: skip
            data = json.dumps({"code": 310, "extFields": fields, "opaque": number}).encode()
            frame = struct.pack(">II", 4 + len(data) + 9, len(data)) + data + b"some body"
            _, [(_, rest)] = core.round([(number % 3, frame)])
            assert rest == b""
        core.end(is_flushed=True)
        assert core.restored == len(PARKED)

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=8), append_crc=st.booleans())
@example(seeds=[10739], append_crc=False)
def test_ordinary_sends_are_all_taken(seeds: list[int], append_crc: bool) -> None:
    """A core that left everything to Python would be right, and of no use."""

    async def run() -> None:
        host = encode_host("10.0.0.2", 10911)
        core = WithCore(host, "ASYNC_FLUSH", append_crc=append_crc, message_limit=512)
        for number, seed in enumerate(seeds):
            data = request(Random(seed), "plain", number)
            _, [(_, rest)] = core.round([(number % 3, data)])
            # A batch may be larger than the broker allows.
            body_bytes = len(data) - 8 - int.from_bytes(data[5:8])
            is_odd = b"\\ud83d" in data or body_bytes > MAX_BODY_BYTES
            assert bool(rest) == (is_odd or core.is_full)
        core.end(is_flushed=True)

    asyncio.run(run())


@pytest.mark.parametrize("append_crc", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_segment_ends_where_python_ends_it(append_crc: bool, is_batch: bool) -> None:
    """A send that ends a few bytes before, at or behind the end lies where Python lays it."""
    host = encode_host("10.0.0.2", 10911)
    text = "UNIQ_KEY\x01U\x02"

    def frame(size: int, *, is_batch: bool) -> bytes:
        header = {
            "code": 320 if is_batch else 310, "extFields": {
                "a": "P", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
                "h": "0", "i": text,
            }, "flag": 0, "opaque": size,
        }  # fmt: skip
        body = bytes(size)
        if is_batch:
            head = struct.pack(">iiiii", 22 + size + len(text), 0, 0, 0, size)
            body = 2 * (head + body + struct.pack(">H", len(text)) + text.encode())
        data = json.dumps(header).encode()
        return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body

    def stored(gap: int, broker: OneBroker, receive: Callable[[bytes], object]) -> dict[str, Any]:
        log = broker.store.commit_log
        segment = log.segments[0]
        last = frame(100, is_batch=is_batch)
        receive(last)
        last_bytes = log.end
        receive(frame(1, is_batch=False))
        fixed_bytes = log.end - last_bytes - 1
        while (room := segment.end - log.end - last_bytes - gap) > 2 * MAX_BODY_BYTES:
            receive(frame(2000, is_batch=False))
        receive(frame(room // 2 - fixed_bytes, is_batch=False))
        receive(frame(room - room // 2 - fixed_bytes, is_batch=False))
        assert segment.end - log.end == last_bytes + gap
        receive(last)
        return broker.end(is_flushed=True)

    async def run(gap: int) -> bool:
        plain = OneBroker(host, "ASYNC_FLUSH", append_crc=append_crc)
        core = WithCore(host, "ASYNC_FLUSH", append_crc=append_crc, message_limit=512)
        expected = stored(gap, plain, lambda data: plain.feed([(0, data)]))
        found = stored(gap, core, lambda data: core.round([(0, data)]))
        assert found == expected, gap
        return core.is_full

    were_full = [asyncio.run(run(gap)) for gap in range(20)]
    # The filler, and for each message of a batch what the check of sizes counts beyond its bytes.
    least = 8 + (2 * (2 if append_crc else 1) if is_batch else 0)
    assert were_full == [gap < least for gap in range(20)]
