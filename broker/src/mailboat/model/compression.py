"""Compressed bodies: which codec a sysFlag names, and bounded decompression.

LZ4 bodies are LZ4 frames, as Java writes them. Readers before release 5 know only zlib.

Source: apache/rocketmq common/compression/CompressionType.java; type 0 is the legacy zlib.
"""

import io
import zlib
from typing import Final

from mailboat.errors import IllegalMessageError
from mailboat.model import sys_flag

# Four times the largest message: enough for every honest body, and a bomb stays small.
MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
# A frame says how far back its reader must remember, up to 2 GiB for a few bytes. Producers take
# 2 MiB at RocketMQ's level and 8 MiB at level 19, the highest that is not called ultra.
MAX_ZSTD_WINDOW_BYTES: Final = MAX_PAYLOAD_BYTES
# What RocketMQ uses for zlib and zstd alike; its LZ4 has one level only.
DEFAULT_LEVEL: Final = 5
LZ4_DEFAULT_LEVEL: Final = 0

COMPRESSION_TYPES: Final = {
    "zlib": sys_flag.COMPRESSION_ZLIB,
    "lz4": sys_flag.COMPRESSION_LZ4,
    "zstd": sys_flag.COMPRESSION_ZSTD,
}
"""The sysFlag bits of each codec by its name."""


def compress(
    body: bytes, compression_type: int = sys_flag.COMPRESSION_ZLIB, level: int | None = None
) -> bytes:
    """Compress a body with one of the `COMPRESSION_*` types of `mailboat.model.sys_flag`.

    Args:
        body: what to compress.
        compression_type: the codec.
        level: the codec's own level, higher is smaller and slower; RocketMQ's if not given.
    """
    if compression_type == sys_flag.COMPRESSION_LZ4:
        import lz4.frame

        lz4_level = LZ4_DEFAULT_LEVEL if level is None else level
        # Java's reader takes frames of independent blocks only.
        frame = lz4.frame.compress(body, compression_level=lz4_level, block_linked=False)
        return bytes(frame)
    if compression_type == sys_flag.COMPRESSION_ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(DEFAULT_LEVEL if level is None else level).compress(body)
    return zlib.compress(body, DEFAULT_LEVEL if level is None else level)


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
    import zstandard

    try:
        codec = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
        with codec.stream_reader(io.BytesIO(body)) as reader:
            payload = reader.read(limit_bytes + 1)
        if len(payload) <= limit_bytes:
            # The bounded reader does not tell a whole frame from the beginning of one.
            frame = codec.decompressobj()
            frame.decompress(body)
            _check_end(frame.eof)
    except zstandard.ZstdError as exc:
        raise RuntimeError(str(exc)) from exc
    return payload


def _check_end(is_whole: bool) -> None:
    if not is_whole:
        raise EOFError("its end is missing")
