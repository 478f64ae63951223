"""Tests of mailboat.protocol.lenient_json."""

from typing import Any

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.protocol.lenient_json import MAX_BYTES, loads


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            b'{"a":[1,-2.5,1e3,true,false,null,"\\u00e9\\n"]}',
            {"a": [1, -2.5, 1e3, True, False, None, "é\n"]},
        ),
        (b'{0:"x",1:{}}', {"0": "x", "1": {}}),
        (b'{"t@g":{0:12,10:7}}', {"t@g": {"0": 12, "10": 7}}),
        (b"{true:1,null:2,-1.5:3}", {"true": 1, "null": 2, "-1.5": 3}),
        (
            b'{{"b":"x","q":0}:{"m":5},{"b":"y","q":1}:6}',
            {'{"b":"x","q":0}': {"m": 5}, '{"b":"y","q":1}': 6},
        ),
        (b'{"{\\"b\\":\\"x\\"}":1}', {'{"b":"x"}': 1}),
        (b' { { "b" : "x" } : [ ] , 0 : { } } ', {'{"b":"x"}': [], "0": {}}),
        (b'{0:"a\\"b{}[]:,"}', {"0": 'a"b{}[]:,'}),
        (b"{{}:1}", {"{}": 1}),
        (b"{0:[]}", {"0": []}),
        (b"[{0:1}]", [{"0": 1}]),
    ],
)
def test_what_fastjson_writes_is_read(text: bytes, value: Any) -> None:
    """Object and number keys become strings, everything else is ordinary JSON."""
    assert value == loads(text)


def test_object_key_reads_like_the_same_key_as_a_string() -> None:
    """Both ways in which Java writes a key give the same key."""
    raw = loads(b'{{"brokerName":"b","queueId":0,"topic":"T"}:1}')
    quoted = loads(b'{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":1}')
    assert raw == quoted


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"{0}",
        b"{0:}",
        b"{0:1",
        b"{0:1,}",
        b"{,0:1}",
        b"{0:1 2}",
        b"{0::1}",
        b"{[]:1}",
        b"{{0:1}",
        b"{{{0:1}:2}:{}:3}",
        b"[{0:1},]",
        b"[1 2]",
        b"{0:1}x",
        b"{0:1}{}",
        b"{0:nul}",
        b"{0:01x}",
        b"{0:NaN}",
        b"{0:1e999}",
        b"{0:" + b"9" * 5000 + b"}",
        b'{0:"\xff"}',
        b'{0:"\\ud800"}',
        b'{0:"\\x"}',
        b'{0:"a\nb"}',
        b'{0:"abc}',
        b"{0:" + b"[" * 100_000,
        b"{" * 100_000,
        b"{0:" * 100_000 + b"1" + b"}" * 100_000,
        b'{0:"a"\0}',
        b'{0:"a\\',
    ],
)
def test_what_is_no_json_either_way_is_refused(text: bytes) -> None:
    """Cut, deep, huge or otherwise wrong text ends as one documented error."""
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_object_keys_within_object_keys_are_refused() -> None:
    """Nested keys would double their escapes at each level: a small text, a huge key."""
    text = b"{" * 40 + b"}" + b":1}" * 39
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_large_text_is_only_read_when_it_is_json() -> None:
    """The slow reader has a size limit, the fast one does not."""
    padding = b" " * MAX_BYTES
    assert {"a": 1} == loads(padding + b'{"a":1}')
    with pytest.raises(RemoteProtocolError, match="the limit is"):
        loads(padding + b"{0:1}")
