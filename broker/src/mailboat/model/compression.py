"""Compressed bodies: which codec a sysFlag names, and bounded decompression.

Source: apache/rocketmq common/compression/CompressionType.java; type 0 is the legacy zlib.
"""

import zlib
from typing import Final

from mailboat.errors import IllegalMessageError
from mailboat.model import sys_flag

# Four times the largest message: enough for every honest body, and a bomb stays small.
MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
ZLIB_LEVEL: Final = 5


def compress(body: bytes, compression_type: int = sys_flag.COMPRESSION_ZLIB) -> bytes:
    """Compress a body with one of the `COMPRESSION_*` types of `mailboat.model.sys_flag`."""
    if compression_type == sys_flag.COMPRESSION_LZ4:
        import lz4.frame

        return bytes(lz4.frame.compress(body))
    if compression_type == sys_flag.COMPRESSION_ZSTD:
        import zstandard

        return zstandard.ZstdCompressor().compress(body)
    return zlib.compress(body, ZLIB_LEVEL)


def decompress(body: bytes, flags: int, limit_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return the payload of a body stored with sysFlag `flags`.

    Raises:
        IllegalMessageError: the body is not what the flag says, or grows beyond `limit_bytes`.
    """
    if not flags & sys_flag.COMPRESSED:
        return body
    kind = flags & sys_flag.COMPRESSION_TYPE_MASK
    try:
        if kind == sys_flag.COMPRESSION_LZ4:
            payload = _lz4(body, limit_bytes)
        elif kind == sys_flag.COMPRESSION_ZSTD:
            payload = _zstd(body, limit_bytes)
        else:
            payload = _zlib(body, limit_bytes)
    except (zlib.error, RuntimeError, EOFError) as exc:
        raise IllegalMessageError(f"a compressed body cannot be read: {exc}") from exc
    if len(payload) > limit_bytes:
        raise IllegalMessageError(f"a compressed body holds more than {limit_bytes} bytes")
    return payload


def _zlib(body: bytes, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    payload = stream.decompress(body, limit_bytes + 1)
    _check_end(stream.eof or len(payload) > limit_bytes)
    return payload


def _lz4(body: bytes, limit_bytes: int) -> bytes:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    payload = bytes(frame.decompress(body, max_length=limit_bytes + 1))
    _check_end(frame.eof or len(payload) > limit_bytes)
    return payload


def _zstd(body: bytes, limit_bytes: int) -> bytes:
    import io

    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)) as reader:
            payload = reader.read(limit_bytes + 1)
        if len(payload) <= limit_bytes:
            # The bounded reader does not tell a whole frame from the beginning of one.
            frame = zstandard.ZstdDecompressor().decompressobj()
            frame.decompress(body)
            _check_end(frame.eof)
    except zstandard.ZstdError as exc:
        raise RuntimeError(str(exc)) from exc
    return payload


def _check_end(is_whole: bool) -> None:
    if not is_whole:
        raise EOFError("its end is missing")
