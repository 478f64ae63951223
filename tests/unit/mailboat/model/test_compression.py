"""Compressed bodies."""

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import IllegalMessageError
from mailboat.model import sys_flag
from mailboat.model.compression import compress, decompress

_TYPES = [0, sys_flag.COMPRESSION_LZ4, sys_flag.COMPRESSION_ZSTD, sys_flag.COMPRESSION_ZLIB]


@pytest.mark.parametrize("kind", _TYPES)
@given(body=st.binary(max_size=2000))
def test_round_trip(kind: int, body: bytes) -> None:
    """Each codec gives the body back."""
    assert decompress(compress(body, kind), sys_flag.COMPRESSED | kind) == body


@given(body=st.binary(max_size=2000))
def test_each_type_is_the_codec_that_rocketmq_names(body: bytes) -> None:
    """0 and 0x300 are zlib, 0x100 LZ4 frames, 0x200 Zstandard."""
    assert zlib.decompress(compress(body, 0x300)) == body
    assert decompress(zlib.compress(body), 0x1) == body
    assert decompress(lz4.frame.compress(body), 0x101) == body
    assert decompress(zstandard.compress(body), 0x201) == body


def test_a_body_without_the_flag_stays_as_it_is() -> None:
    """Only bit 0 says compressed."""
    assert decompress(b"plain", sys_flag.COMPRESSION_ZLIB) == b"plain"


@pytest.mark.parametrize("kind", _TYPES)
def test_a_bomb_is_refused_before_it_grows(kind: int) -> None:
    """No more than the limit is ever unpacked."""
    bomb = compress(bytes(3_000_000), kind)
    assert len(decompress(bomb, 1 | kind, 3_000_000)) == 3_000_000
    with pytest.raises(IllegalMessageError, match="more than 2999999 bytes"):
        decompress(bomb, 1 | kind, 2_999_999)


@pytest.mark.parametrize(
    ("window_log", "is_taken"), [(23, True), (24, True), (25, False), (27, False)]
)
def test_a_frame_that_wants_a_large_window_is_refused(window_log: int, is_taken: bool) -> None:
    """A few bytes must not make a reader set 128 MiB aside; level 19 takes 2^23 bytes."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(b"small") + stream.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 1 << window_log
    if is_taken:
        assert decompress(frame, 0x201) == b"small"
    else:
        with pytest.raises(IllegalMessageError, match="too much memory"):
            decompress(frame, 0x201)


@pytest.mark.parametrize("kind", _TYPES)
@given(body=st.binary(max_size=100))
def test_any_bytes_are_a_body_or_a_documented_error(kind: int, body: bytes) -> None:
    """Garbage raises IllegalMessageError and nothing else."""
    try:
        decompress(body, 1 | kind)
    except IllegalMessageError as exc:
        assert "compressed body" in str(exc)


@pytest.mark.parametrize("kind", _TYPES)
def test_a_body_that_is_cut_short_is_refused(kind: int) -> None:
    """Half a body is never delivered as if it were whole."""
    body = bytes(range(256)) * 40
    whole = compress(body, kind)
    for size in (1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(IllegalMessageError):
            decompress(whole[:size], 1 | kind)


def test_lz4_frames_have_independent_blocks() -> None:
    """Java's reader takes no others; the bit is 0x20 of the byte after the magic number."""
    frame = compress(bytes(200_000), sys_flag.COMPRESSION_LZ4)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0x20
