"""RemotingCommand: one request or response, and both ways to write its header.

JSON header: an object with `code`, `language`, `version`, `opaque`, `flag`, `remark` and
`extFields`. Read with tolerance (numbers and booleans as ext values, unknown keys), written with
string values only, compact, keys in Java's order.

Binary header (serialize type 1), big-endian:

| size | field |
|---|---|
| 2 | code; codes above 32767 arrive as their low 16 bits |
| 1 | language |
| 2 | version |
| 4 | opaque |
| 4 | flag |
| 4 + n | remark, UTF-8; length 0 means absent |
| 4 + n | ext fields: repeated int16 length, key, int32 length, value |

Source: apache/rocketmq remoting/protocol/RemotingCommand.java, RocketMQSerializable.java
"""

import re
import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from mailboat.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from mailboat.protocol.codes import (
    LANGUAGE_CODES,
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
    request_code_name,
)
from mailboat.protocol.frame import (
    SERIALIZE_BINARY,
    SERIALIZE_JSON,
    Frame,
    encode_frame,
    encode_frame_head,
)

RESPONSE_FLAG: Final = 0x1
ONEWAY_FLAG: Final = 0x2

ExtValue = str | int | bool | None

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

MAX_NAME_LENGTH: Final = 1024
"""Longest name that a peer may give to anything, itself included. What is a legal topic or group is
shorter; client ids of Java have the host, the process and any unit's name."""

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)]

_INT16_MAX: Final = 32767
# The largest requests have some twenty. To read forty thousand would take 50 ms.
_BINARY_EXT_FIELDS_MOST: Final = 4096
_TOLERANT_COLONS_MOST: Final = 8192
# Ext fields that whoever reads a log must not be able to use.
_SECRET_FIELDS: Final = frozenset({"Signature", "SecurityToken", "secretKey", "password"})
_HIDDEN: Final = "<hidden>"
# Codes that do not fit the binary header's int16, by the low 16 bits that arrive instead.
_WIDE_CODES: Final = {
    code & 0xFFFF: code
    for code in (
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.POP_ROLLBACK,
        RequestCode.BATCH_ACK_MESSAGE,
    )
}
_BINARY_FIXED: Final = struct.Struct(">hbhiii")
_BINARY_CODE: Final = struct.Struct(">h")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64_DIGITS: Final = 19
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_JSON_MAX_EXACT_FLOAT: Final = 2.0**53


class _JsonHeader(msgspec.Struct, gc=False):
    """The JSON header as well-behaved peers write it: every ext value is a string."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str | None = None
    remark: str | None = None
    extFields: dict[str, str] | None = None


class _TolerantJsonHeader(msgspec.Struct, gc=False):
    """The JSON header of peers that write numbers, booleans and null as ext values."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: Any = None
    remark: Any = None
    extFields: dict[str, Any] | None = None


class _JsonOutput(msgspec.Struct, gc=False):
    """What is written: Java's keys in Java's (alphabetical) order."""

    code: int
    extFields: dict[str, str] | msgspec.UnsetType
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str
    version: int


_decode_json: Final = msgspec.json.Decoder(_JsonHeader).decode
_decode_tolerant_json: Final = msgspec.json.Decoder(_TolerantJsonHeader, strict=False).decode
_encode_json: Final = msgspec.json.Encoder().encode


class RemotingCommand:
    """One request or response.

    `ext_fields` holds the header's own parameters as strings, `body` whatever the code defines.
    `opaque` pairs a response with its request; the connection that sends a request sets it.
    `asked_by` is the user that a guard has found to have sent a request, however that was proved;
    empty where nobody is asked, and never what a peer says.
    """

    __slots__ = (
        "asked_by",
        "body",
        "code",
        "ext_fields",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        *,
        opaque: int = 0,
        flag: int = 0,
        version: int = VERSION,
        language: str = LanguageCode.PYTHON,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        serialize_type: int = SERIALIZE_JSON,
    ) -> None:
        """Hold the fields as they are; `request` and `response` are the usual ways to make one."""
        self.asked_by = ""
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.version = version
        self.language = language
        self.remark = remark
        self.ext_fields = {} if ext_fields is None else ext_fields
        self.body = body
        self.serialize_type = serialize_type

    def __repr__(self) -> str:
        """Show the header and the size of the body, and no secret, for logs and test failures."""
        shown = {
            name: _HIDDEN if name in _SECRET_FIELDS else value
            for name, value in self.ext_fields.items()
        }
        kind = f"response {self.code}" if self.is_response else request_code_name(self.code)
        return (
            f"RemotingCommand({kind}, opaque={self.opaque}, flag={self.flag}, "
            f"remark={self.remark!r}, ext_fields={shown!r}, body={len(self.body)} bytes)"
        )

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & ONEWAY_FLAG)

    @classmethod
    def request(
        cls,
        code: int,
        ext_fields: Mapping[str, ExtValue] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> "RemotingCommand":
        """Make a request; ext values become strings, None is left out."""
        return cls(
            code,
            flag=ONEWAY_FLAG if oneway else 0,
            ext_fields=_ext_strings(ext_fields),
            body=body,
        )

    def response(
        self,
        code: int,
        remark: str | None = None,
        ext_fields: Mapping[str, ExtValue] | None = None,
        body: bytes = b"",
    ) -> "RemotingCommand":
        """Make the answer to this request: same opaque, written the way the request was."""
        return RemotingCommand(
            code,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            ext_fields=_ext_strings(ext_fields),
            body=body,
            serialize_type=self.serialize_type,
        )

    def without_content(self) -> "RemotingCommand":
        """Return a request without its fields and its body: what its answer is made of.

        Who answers later keeps this, however much a peer has sent.
        """
        return RemotingCommand(
            self.code, opaque=self.opaque, flag=self.flag, serialize_type=self.serialize_type
        )

    def encode(self) -> bytes:
        """Return the whole frame.

        Raises:
            LocalProtocolError: a field does not fit the protocol or the frame limits.
        """
        return encode_frame(self._written_type, self._encode_header(), self.body)

    def encode_head(self, body_bytes: int) -> bytes:
        """Return the frame up to its body, of which so many bytes follow; `body` is left aside.

        Raises:
            LocalProtocolError: a field does not fit the protocol or the frame limits.
        """
        return encode_frame_head(self._written_type, self._encode_header(), body_bytes)

    @property
    def _written_type(self) -> int:
        return SERIALIZE_BINARY if self.serialize_type == SERIALIZE_BINARY else SERIALIZE_JSON

    def _encode_header(self) -> bytes:
        if self.serialize_type == SERIALIZE_BINARY:
            return _encode_binary_header(self)
        output = _JsonOutput(
            self.code,
            self.ext_fields or msgspec.UNSET,
            self.flag,
            self.language,
            self.opaque,
            msgspec.UNSET if self.remark is None else self.remark,
            "JSON",
            self.version,
        )
        try:
            return _encode_json(output)
        except (UnicodeEncodeError, TypeError, OverflowError) as error:
            raise LocalProtocolError(f"{self!r} cannot be written as JSON: {error}") from error


def decode_command(frame: Frame) -> RemotingCommand:
    """Read the header of a frame.

    Raises:
        RemoteProtocolError: the header is not what the frame says it is.
    """
    serialize_type, header, body = frame
    if serialize_type == SERIALIZE_BINARY:
        return _decode_binary(header, body)
    try:
        fields = _decode_json(header)
    except (ValueError, RecursionError):
        return _decode_tolerant(header, body)
    language = fields.language
    return RemotingCommand(
        fields.code,
        opaque=fields.opaque,
        flag=fields.flag,
        version=fields.version,
        language=language if language in LANGUAGE_CODES else LanguageCode.OTHER,
        remark=fields.remark,
        ext_fields=fields.extFields,
        body=body,
    )


def wide_code(code: int) -> int:
    """Return the request code that a binary header's int16 stands for."""
    return _WIDE_CODES.get(code, code)


def required_str(command: RemotingCommand, name: str) -> str:
    """Return a mandatory ext field.

    Raises:
        BrokerError: SYSTEM_ERROR, the field is absent.
    """
    value = command.ext_fields.get(name)
    if value is None:
        raise _bad_field(command, name, "is missing")
    return value


def optional_str(command: RemotingCommand, name: str, default: str | None = None) -> str | None:
    """Return an ext field, or `default` when it is absent."""
    return command.ext_fields.get(name, default)


def required_name(command: RemotingCommand, name: str) -> str:
    """Return a mandatory ext field that names something: it is kept, and stands in the log.

    Raises:
        BrokerError: SYSTEM_ERROR, the field is absent or too long for a name.
    """
    value = required_str(command, name)
    if len(value) > MAX_NAME_LENGTH:
        raise _bad_field(command, name, f"has {len(value)} characters, more than {MAX_NAME_LENGTH}")
    return value


def required_int(command: RemotingCommand, name: str) -> int:
    """Return a mandatory ext field as an int64.

    Raises:
        BrokerError: SYSTEM_ERROR, the field is absent or not a decimal int64.
    """
    return _parse(command, name, required_str(command, name), 63)


def required_int32(command: RemotingCommand, name: str) -> int:
    """Return a mandatory ext field as an int32.

    Raises:
        BrokerError: SYSTEM_ERROR, the field is absent or not a decimal int32.
    """
    return _parse(command, name, required_str(command, name), 31)


def optional_int(command: RemotingCommand, name: str, default: int) -> int:
    """Return an ext field as an int64, or `default` when it is absent.

    Raises:
        BrokerError: SYSTEM_ERROR, the field is there and not a decimal int64.
    """
    value = command.ext_fields.get(name)
    return default if value is None else _parse(command, name, value, 63)


def optional_int32(command: RemotingCommand, name: str, default: int) -> int:
    """Return an ext field as an int32, or `default` when it is absent.

    Raises:
        BrokerError: SYSTEM_ERROR, the field is there and not a decimal int32.
    """
    value = command.ext_fields.get(name)
    return default if value is None else _parse(command, name, value, 31)


def required_bool(command: RemotingCommand, name: str) -> bool:
    """Return a mandatory ext field as a boolean: "true" in any case, everything else is false.

    Raises:
        BrokerError: SYSTEM_ERROR, the field is absent.
    """
    return required_str(command, name).lower() == "true"


def optional_bool(command: RemotingCommand, name: str, default: bool = False) -> bool:
    """Return an ext field as a boolean ("true" in any case), or `default` when it is absent."""
    value = command.ext_fields.get(name)
    return default if value is None else value.lower() == "true"


def parse_decimal(text: str, bits: int) -> int | None:
    """Return a decimal integer that fits `bits` and a sign as Java reads it, or None."""
    # Most are bare digits, which are told for a tenth of what the pattern takes.
    is_bare = len(text) <= _INT64_DIGITS and text.isascii() and text.isdigit()
    if not is_bare and _DECIMAL.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -(1 << bits) <= value < 1 << bits else None


def _parse(command: RemotingCommand, name: str, text: str, bits: int) -> int:
    value = parse_decimal(text, bits)
    if value is None:
        raise _bad_field(command, name, f"is not an int{bits + 1}: {text[:40]!r}")
    return value


def _bad_field(command: RemotingCommand, name: str, reason: str) -> BrokerError:
    if command.is_response:
        sentence = f"response to opaque {command.opaque}: field '{name}' {reason}"
    else:
        sentence = f"request {request_code_name(command.code)}: field '{name}' {reason}"
    return BrokerError(ResponseCode.SYSTEM_ERROR, sentence)


def _ext_strings(ext_fields: Mapping[str, ExtValue] | None) -> dict[str, str]:
    if ext_fields is None:
        return {}
    return {
        name: value if isinstance(value, str) else _ext_string(value)
        for name, value in ext_fields.items()
        if value is not None
    }


def _ext_string(value: object) -> str:
    """Return the text of one ext value that is not a string, as Java and JavaScript print it."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < _JSON_MAX_EXACT_FLOAT:
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    return _encode_json(value).decode()


def _decode_tolerant(header: bytes, body: bytes) -> RemotingCommand:
    """Read a header whose ext values are not all strings."""
    if header.count(b":") > _TOLERANT_COLONS_MOST:
        raise RemoteProtocolError("a header that is no plain JSON has too many fields")
    try:
        fields = _decode_tolerant_json(header)
        ext_fields = {
            name: value if isinstance(value, str) else _ext_string(value)
            for name, value in (fields.extFields or {}).items()
            if value is not None
        }
    except (ValueError, RecursionError, OverflowError) as error:
        raise RemoteProtocolError(f"header is not a JSON header: {error}") from error
    language = fields.language if isinstance(fields.language, str) else LanguageCode.OTHER
    return RemotingCommand(
        fields.code,
        opaque=fields.opaque,
        flag=fields.flag,
        version=fields.version,
        language=language if language in LANGUAGE_CODES else LanguageCode.OTHER,
        remark=fields.remark if isinstance(fields.remark, str) else None,
        ext_fields=ext_fields,
        body=body,
    )


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_length = _BINARY_FIXED.unpack_from(header)
        position = _BINARY_FIXED.size
        remark, position = _take_text(header, position, remark_length)
        (ext_length,) = _INT32.unpack_from(header, position)
        ext_fields = _decode_binary_ext(header, position + _INT32.size, ext_length)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"header is not a binary header: {error}") from error
    return RemotingCommand(
        code if flag & RESPONSE_FLAG else wide_code(code),
        opaque=opaque,
        flag=flag,
        version=version,
        language=(
            LanguageCode.ALL[language]
            if 0 <= language < len(LanguageCode.ALL)
            else LanguageCode.OTHER
        ),
        remark=remark or None,
        ext_fields=ext_fields,
        body=body,
        serialize_type=SERIALIZE_BINARY,
    )


def _decode_binary_ext(header: bytes, position: int, length: int) -> dict[str, str]:
    end = position + length
    if length < 0 or end > len(header):
        raise RemoteProtocolError(f"ext fields of length {length} do not fit into the header")
    ext_fields: dict[str, str] = {}
    for _ in range(_BINARY_EXT_FIELDS_MOST):
        if position >= end:
            break
        (key_length,) = _INT16.unpack_from(header, position)
        key, position = _take_text(header, position + _INT16.size, key_length)
        (value_length,) = _INT32.unpack_from(header, position)
        value, position = _take_text(header, position + _INT32.size, value_length)
        if key and value:  # a length of 0 stands for null
            ext_fields[key] = value
    if position != end:
        raise RemoteProtocolError(
            f"ext fields do not end where they should, or are more than {_BINARY_EXT_FIELDS_MOST}"
        )
    return ext_fields


def _take_text(header: bytes, position: int, length: int) -> tuple[str, int]:
    end = position + length
    if length < 0 or end > len(header):
        raise RemoteProtocolError(f"text of length {length} does not fit into the header")
    return header[position:end].decode(), end


def _encode_binary_header(command: RemotingCommand) -> bytes:
    code = command.code
    if code > _INT16_MAX:
        code = _BINARY_CODE.unpack(struct.pack(">H", code & 0xFFFF))[0]
    try:
        remark = (command.remark or "").encode()
        parts: list[bytes] = []
        for name, value in command.ext_fields.items():
            key_bytes, value_bytes = name.encode(), value.encode()
            parts += (
                _INT16.pack(len(key_bytes)),
                key_bytes,
                _INT32.pack(len(value_bytes)),
                value_bytes,
            )
        ext = b"".join(parts)
        fixed = _BINARY_FIXED.pack(
            code,
            LANGUAGE_CODES.get(command.language, LANGUAGE_CODES[LanguageCode.OTHER]),
            command.version,
            command.opaque,
            command.flag,
            len(remark),
        )
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"{command!r} does not fit a binary header: {error}") from error
    return b"".join((fixed, remark, _INT32.pack(len(ext)), ext))
