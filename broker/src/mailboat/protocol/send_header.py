"""The headers of the two hot requests, read straight into typed objects, and their answers.

`decode_send_header` takes codes 10 (long field names), 310 and 320 (one-letter names),
`decode_pull_header` codes 11 and 361. The JSON that well-behaved clients write goes through one
typed msgspec decoder; everything else (binary headers, nulls, odd booleans) takes the ordinary way
through RemotingCommand, which also words the complaints.

Answers are templates: whole frames but for the numbers. They are for JSON requests; a request with
`serialize_type` 1 is answered through `RemotingCommand.response`.

Source: apache/rocketmq remoting/protocol/header/SendMessageRequestHeader{,V2}.java,
PullMessageRequestHeader.java, SendMessageResponseHeader.java, PullMessageResponseHeader.java
"""

import struct
from typing import Final

import msgspec

from mailboat.errors import BrokerError, RemoteProtocolError
from mailboat.protocol.codes import REQUEST_CODES, VERSION, RequestCode
from mailboat.protocol.command import (
    Int32,
    Int64,
    RemotingCommand,
    decode_command,
    optional_bool,
    optional_int32,
    optional_str,
    required_int,
    required_int32,
    required_str,
    wide_code,
)
from mailboat.protocol.frame import (
    FRAME_MAX_BYTES,
    SERIALIZE_BINARY,
    SERIALIZE_JSON,
    Frame,
)

_PREFIX: Final = struct.Struct(">II")
_LENGTH_BYTES: Final = 4
_INT16: Final = struct.Struct(">h")
# How the headers of two- and three-digit codes start in JSON: one slice and one look-up.
START_BYTES: Final = 12
CODE_BY_START: Final = {
    (b'{"code":%d,"' % code)[:START_BYTES]: code for code in REQUEST_CODES if 10 <= code <= 999
}
_LONG_NAMES_CODES: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
_LONG_NAMES_START: Final = b'{"code":10,'
_SHORT_NAMES: Final = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp_ms": "g",
    "message_flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}
_LONG_NAMES: Final = {
    "producer_group": "producerGroup",
    "topic": "topic",
    "default_topic": "defaultTopic",
    "default_topic_queue_nums": "defaultTopicQueueNums",
    "queue_id": "queueId",
    "sys_flag": "sysFlag",
    "born_timestamp_ms": "bornTimestamp",
    "message_flag": "flag",
    "properties": "properties",
    "reconsume_times": "reconsumeTimes",
    "unit_mode": "unitMode",
    "max_reconsume_times": "maxReconsumeTimes",
    "batch": "batch",
    "broker_name": "bname",
}

# The range checks cost 3 % of a decode each, so of a send only what is stored as it came has one.


class SendFields(msgspec.Struct, gc=False, rename=_SHORT_NAMES):
    """What a SEND_MESSAGE header says; `message_flag` is the message's own flag."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: Int32
    born_timestamp_ms: Int64
    message_flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    broker_name: str | None = None


class SendRequest(msgspec.Struct, gc=False, rename={"fields": "extFields"}):
    """One SEND_MESSAGE header, whatever form it came in; `flag` is the command's."""

    code: int
    fields: SendFields
    flag: int = 0
    opaque: int = 0
    version: int = 0
    serialize_type: int = SERIALIZE_JSON


class _LongSendFields(SendFields, gc=False, rename=_LONG_NAMES):
    """SendFields under the names of code 10; msgspec renames only what a class declares itself."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: Int32
    born_timestamp_ms: Int64
    message_flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    broker_name: str | None = None


class _LongSendRequest(SendRequest, gc=False, rename={"fields": "extFields"}):
    """SendRequest under the names of code 10."""

    fields: _LongSendFields


class PullFields(msgspec.Struct, gc=False, rename="camel"):
    """What a PULL_MESSAGE header says; the subscription is None when the client left it out."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    bname: str | None = None


class PullRequest(msgspec.Struct, gc=False, rename={"fields": "extFields"}):
    """One PULL_MESSAGE header, whatever form it came in; `flag` is the command's."""

    code: int
    fields: PullFields
    flag: int = 0
    opaque: int = 0
    version: int = 0
    serialize_type: int = SERIALIZE_JSON
    asked_by: str = ""
    """Who signed it, set by a guard only: a pull that waits is judged again."""


class _CodeOnly(msgspec.Struct, gc=False):
    code: int


_decode_send: Final = msgspec.json.Decoder(SendRequest, strict=False).decode
_decode_long_send: Final = msgspec.json.Decoder(_LongSendRequest, strict=False).decode
_decode_pull: Final = msgspec.json.Decoder(PullRequest, strict=False).decode
_decode_code: Final = msgspec.json.Decoder(_CodeOnly, strict=False).decode

_RESPONSE_END: Final = (
    b'},"flag":1,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    % VERSION
)
_SEND_RESPONSE: Final = (
    b'{"code":%d,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"%b",'
    b'"queueId":"%d","queueOffset":"%d"' + _RESPONSE_END
)
_PULL_RESPONSE: Final = (
    b'{"code":%d,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"%d"' + _RESPONSE_END
)


class MalformedRequestError(BrokerError):
    """A request misses a field or has one of the wrong kind; it can still be answered."""

    def __init__(self, command: RemotingCommand, error: BrokerError) -> None:
        """Keep the request that has to be answered and what is wrong with it."""
        super().__init__(error.code, error.remark)
        self.command = command


def peek_code(frame: Frame) -> int:
    """Return the code of a frame without reading the rest of its header.

    A response has a code too; the flag of the decoded header tells them apart.

    Raises:
        RemoteProtocolError: the header has no code.
    """
    header = frame[1]
    code = CODE_BY_START.get(header[:START_BYTES])
    if code is not None and frame[0] == SERIALIZE_JSON:
        return code
    if frame[0] == SERIALIZE_BINARY:
        if len(header) < _INT16.size:
            raise RemoteProtocolError(f"a binary header of {len(header)} bytes has no code")
        return wide_code(_INT16.unpack_from(header)[0])
    try:
        return _decode_code(header).code
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"header is not a JSON header: {error}") from error


def decode_send_header(frame: Frame) -> SendRequest:
    """Read a SEND_MESSAGE header (10, 310, 320).

    Raises:
        MalformedRequestError: a field is missing or of the wrong kind.
        RemoteProtocolError: the header cannot be read at all.
    """
    serialize_type, header, _ = frame
    if serialize_type == SERIALIZE_JSON:
        try:
            if header.startswith(_LONG_NAMES_START):
                return _decode_long_send(header)
            return _decode_send(header)
        except (ValueError, RecursionError):
            pass  # The ordinary way knows what is wrong, or that nothing is.
    return send_request(decode_command(frame))


def decode_pull_header(frame: Frame) -> PullRequest:
    """Read a PULL_MESSAGE header (11, 361).

    Raises:
        MalformedRequestError: a field is missing or of the wrong kind.
        RemoteProtocolError: the header cannot be read at all.
    """
    serialize_type, header, _ = frame
    if serialize_type == SERIALIZE_JSON:
        try:
            return _decode_pull(header)
        except (ValueError, RecursionError):
            pass  # The ordinary way knows what is wrong, or that nothing is.
    return pull_request(decode_command(frame))


def send_request(command: RemotingCommand) -> SendRequest:
    """Read the fields of SEND_MESSAGE, or of SEND_REPLY_MESSAGE, out of a decoded command.

    Raises:
        MalformedRequestError: a field is missing or of the wrong kind.
    """
    names = _LONG_NAMES if command.code in _LONG_NAMES_CODES else _SHORT_NAMES
    try:
        fields = SendFields(
            required_str(command, names["producer_group"]),
            required_str(command, names["topic"]),
            required_str(command, names["default_topic"]),
            required_int32(command, names["default_topic_queue_nums"]),
            required_int32(command, names["queue_id"]),
            required_int32(command, names["sys_flag"]),
            required_int(command, names["born_timestamp_ms"]),
            required_int32(command, names["message_flag"]),
            optional_str(command, names["properties"]) or "",
            optional_int32(command, names["reconsume_times"], 0),
            optional_bool(command, names["unit_mode"]),
            _optional_int32_or_none(command, names["max_reconsume_times"]),
            optional_bool(command, names["batch"]),
            optional_str(command, names["broker_name"]),
        )
    except BrokerError as error:
        raise MalformedRequestError(command, error) from error
    return SendRequest(
        command.code,
        fields,
        command.flag,
        command.opaque,
        command.version,
        command.serialize_type,
    )


def pull_request(command: RemotingCommand) -> PullRequest:
    """Read the fields of PULL_MESSAGE out of a decoded command.

    Raises:
        MalformedRequestError: a field is missing or of the wrong kind.
    """
    try:
        fields = PullFields(
            required_str(command, "consumerGroup"),
            required_str(command, "topic"),
            required_int32(command, "queueId"),
            required_int(command, "queueOffset"),
            required_int32(command, "maxMsgNums"),
            required_int32(command, "sysFlag"),
            required_int(command, "commitOffset"),
            required_int(command, "suspendTimeoutMillis"),
            required_int(command, "subVersion"),
            optional_str(command, "subscription"),
            optional_str(command, "expressionType"),
            optional_str(command, "bname"),
        )
    except BrokerError as error:
        raise MalformedRequestError(command, error) from error
    return PullRequest(
        command.code,
        fields,
        command.flag,
        command.opaque,
        command.version,
        command.serialize_type,
    )


def encode_send_response(
    opaque: int, message_id: bytes, queue_id: int, queue_offset: int, code: int = 0
) -> bytes:
    """Return the whole answer to a stored message; for a batch `message_id` is comma-joined."""
    header = _SEND_RESPONSE % (code, message_id, queue_id, queue_offset, opaque)
    length = len(header)
    return _PREFIX.pack(length + _LENGTH_BYTES, length) + header


def encode_pull_response_header(
    opaque: int,
    code: int,
    *,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_size: int,
    suggest_which_broker_id: int = 0,
) -> bytes:
    """Return the start of the answer to a pull; `body_size` bytes of records have to follow."""
    header = _PULL_RESPONSE % (
        code,
        max_offset,
        min_offset,
        next_begin_offset,
        suggest_which_broker_id,
        opaque,
    )
    length = len(header)
    assert length + body_size <= FRAME_MAX_BYTES - 2 * _LENGTH_BYTES
    return _PREFIX.pack(length + _LENGTH_BYTES + body_size, length) + header


def guarded_send(command: RemotingCommand) -> SendRequest:
    """Read the fields of SEND_MESSAGE out of a command whose signature was checked.

    Raises:
        MalformedRequestError: a field is missing or of the wrong kind.
    """
    kind = _LongSendFields if command.code in _LONG_NAMES_CODES else SendFields
    try:
        fields = msgspec.convert(command.ext_fields, kind, strict=False)
    except ValueError:
        return send_request(command)  # It knows what is wrong, or that nothing is.
    return SendRequest(
        command.code,
        fields,
        command.flag,
        command.opaque,
        command.version,
        command.serialize_type,
    )


def guarded_pull(command: RemotingCommand, asked_by: str) -> PullRequest:
    """Read the fields of PULL_MESSAGE out of a command whose signature was checked.

    Raises:
        MalformedRequestError: a field is missing or of the wrong kind.
    """
    try:
        fields = msgspec.convert(command.ext_fields, PullFields, strict=False)
    except ValueError:
        request = pull_request(command)  # It knows what is wrong, or that nothing is.
        request.asked_by = asked_by
        return request
    return PullRequest(
        command.code,
        fields,
        command.flag,
        command.opaque,
        command.version,
        command.serialize_type,
        asked_by,
    )


def _optional_int32_or_none(command: RemotingCommand, name: str) -> int | None:
    return optional_int32(command, name, 0) if name in command.ext_fields else None
