"""How answers look: JSON of typed values, and one sentence in `{"error": ...}` for every
refusal."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from mailboat.errors import BrokerError, IllegalMessageError, MailboatError, RemotingError
from mailboat.protocol.codes import ResponseCode

_encode: Final = msgspec.json.Encoder().encode
_T = TypeVar("_T")
_STATUS_BY_CODE: Final = {
    ResponseCode.MESSAGE_ILLEGAL: 400,
    ResponseCode.INVALID_PARAMETER: 400,
    ResponseCode.NO_PERMISSION: 403,
    ResponseCode.TOPIC_NOT_EXIST: 404,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 404,
    ResponseCode.SYSTEM_BUSY: 429,
    ResponseCode.FLOW_CONTROL: 429,
    ResponseCode.SERVICE_NOT_AVAILABLE: 503,
}
# These headers of an error are about the text that it has without us.
_OF_THE_BODY: Final = frozenset({"content-type", "content-length"})

SMALL_BODY_BYTES: Final = 65_536
"""Longest body that is read in one go."""

logger = logging.getLogger(__name__)


class ErrorBody(msgspec.Struct):
    """Why a request was refused."""

    error: str


def reply(value: object, *, status: int = 200) -> web.Response:
    """Answer with a typed value as JSON."""
    return web.Response(body=_encode(value), status=status, content_type="application/json")


def refuse(status: int, sentence: str) -> web.Response:
    """Answer with one sentence that says what is wrong."""
    return reply(ErrorBody(sentence), status=status)


async def read_json(
    request: web.Request, decoder: msgspec.json.Decoder[_T], max_bytes: int = SMALL_BODY_BYTES
) -> _T:
    """Read and check the body of a request.

    What is longer than `max_bytes` takes too long to read in one go: where a body may be larger,
    its decoder leaves what it has many of as it is (`msgspec.Raw`), for `decode_part`.

    Raises:
        HTTPRequestEntityTooLarge: it is longer.
        HTTPBadRequest: it is not what the decoder wants; the text says where.
    """
    body = await request.read()
    if len(body) > max_bytes:
        raise web.HTTPRequestEntityTooLarge(
            max_bytes,
            len(body),
            text=f"the body has {len(body)} bytes, at most {max_bytes} are taken here",
        )
    return decode_part(body, decoder, "the body", max_bytes)


def decode_part(
    part: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[_T], name: str, max_bytes: int
) -> _T:
    """Read and check a part of a body.

    Raises:
        HTTPBadRequest: it is not what the decoder wants, or too long; the text has its `name`.
    """
    text = bytes(part)
    if len(text) > max_bytes:
        sentence = f"{name} cannot be taken: it has {len(text)} bytes, more than {max_bytes}"
        raise web.HTTPBadRequest(text=sentence)
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise web.HTTPBadRequest(text=f"{name} cannot be taken: {exc}") from exc


@web.middleware
async def answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every error into a JSON answer; only a fault of ours is a 500, and it is logged."""
    try:
        return await handler(request)
    except web.HTTPException as exc:
        if exc.status < 400:
            raise
        answer = refuse(exc.status, exc.text or exc.reason)
        for name, value in exc.headers.items():
            if name.lower() not in _OF_THE_BODY:
                answer.headers.add(name, value)
        return answer
    except IllegalMessageError as exc:
        return refuse(400, str(exc))
    except BrokerError as exc:
        return refuse(_STATUS_BY_CODE.get(exc.code, 500), exc.remark)
    except RemotingError as exc:
        return refuse(504, f"{exc}; the outcome is unknown")
    except MailboatError as exc:
        return refuse(503, str(exc))
    except ConnectionError:
        # Nobody reads it any more.
        return refuse(400, "the connection ended before the request did")
    except Exception as exc:
        # As it was sent, without the query: decoded it could hold lines of its own.
        logger.exception("request failed: %s %s", request.method, request.rel_url.raw_path)
        return refuse(500, f"internal error: {type(exc).__name__}")
