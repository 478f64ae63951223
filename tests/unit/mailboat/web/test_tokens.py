"""The file of bearer tokens: what is taken and what is not, without a word of what is in it."""

from pathlib import Path

import pytest

from mailboat.errors import ConfigError
from mailboat.web.tokens import TOKENS_MAX, BearerTokens

FIRST, SECOND = b"1" * 16, b"2" * 16


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no token"),
        (b"\n \n", "holds no token"),
        (b"short-secret", "line 1: a token must be 16 to 1024"),
        (b"1111111111111111\nshort-secret", "line 2: a token must be"),
        (b"short-secret\xff" * 4, "line 1: a token must be"),
        (b"short-secret" * 100, "line 1: a token must be"),
        (FIRST + b" short-secret", "line 1: a token must be"),
        (b"\n".join([FIRST] * (TOKENS_MAX + 1)), f"more than {TOKENS_MAX} tokens"),
        (b"\n" * 65_537, "more than 65536 bytes"),
    ],
)
async def test_a_file_without_tokens_stops_the_start(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    """Nobody could tell such a port from a locked one."""
    file = tmp_path / "tokens"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as raised:
        await BearerTokens(str(file), "").start()
    assert "short-secret" not in str(raised.value)


async def test_a_missing_file_and_a_folder_stop_the_start(tmp_path: Path) -> None:
    """The text says which."""
    with pytest.raises(ConfigError, match="is no file"):
        await BearerTokens(str(tmp_path / "none"), "").start()
    with pytest.raises(ConfigError, match="is no file"):
        await BearerTokens(str(tmp_path), "").start()


async def test_several_tokens_are_valid_until_the_file_says_otherwise(tmp_path: Path) -> None:
    """A file that is gone or broken changes nothing; the own token is valid all the time."""
    file = tmp_path / "tokens"
    file.write_bytes(FIRST + b"\r\n\n  " + SECOND)
    tokens = BearerTokens(str(file), "3" * 16)

    def valid() -> list[bool]:
        return [tokens.accept(token) for token in (FIRST, SECOND, b"3" * 16, b"", FIRST + b"1")]

    await tokens.read()
    assert valid() == [True, True, True, False, False]
    file.unlink()
    with pytest.raises(ConfigError):
        await tokens.read()
    file.write_bytes(b"?")
    with pytest.raises(ConfigError):
        await tokens.read()
    assert valid() == [True, True, True, False, False]
    file.write_bytes(SECOND)
    await tokens.read()
    assert valid() == [False, True, True, False, False]
    file.write_bytes(b"")
    await tokens.read()
    assert valid() == [False, False, True, False, False]
