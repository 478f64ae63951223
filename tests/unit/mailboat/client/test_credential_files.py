"""Tests of mailboat.client.credential_files; the form of tools.yml is that of RocketMQ's own."""

from pathlib import Path

import pytest

from mailboat.client.credential_files import read_secret, read_tools_file
from mailboat.errors import ConfigError
from mailboat.security.client_security import Credentials


@pytest.mark.parametrize("text", ["s3cret", "s3cret\n", "  s3cret\r\n"])
def test_a_secret_is_all_of_a_file(tmp_path: Path, text: str) -> None:
    """Editors and shells end a file with a line end, which is not meant."""
    path = tmp_path / "secret"
    path.write_bytes(text.encode())
    assert read_secret(path) == "s3cret"


@pytest.mark.parametrize("data", [b"", b"\n", b"a\nb", b"a\x00b", b"\xff\xfe"])
def test_what_is_no_secret_is_refused(tmp_path: Path, data: bytes) -> None:
    """The sentence names the file, never what is in it."""
    path = tmp_path / "secret"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_secret(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the system's reason."""
    with pytest.raises(ConfigError, match="nowhere: cannot be read: No such file"):
        read_secret(tmp_path / "nowhere")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """It is none of credentials."""
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 70_000)
    with pytest.raises(ConfigError, match="more than 65536 bytes"):
        read_secret(path)


SHIPPED = """\
# Licensed to the Apache Software Foundation (ASF) under one or more
#  contributor license agreements.

accessKey: rocketmq2
secretKey: 12345678

"""


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (SHIPPED, "12345678"),
        ("accessKey: rocketmq2\r\nsecretKey: 12345678\r\n", "12345678"),
        ("secretKey: 'it: # is'\naccessKey: \"rocketmq2\"", "it: # is"),
        ("accessKey:   rocketmq2   # who\nsecretKey: a#b:c", "a#b:c"),
        ("other: [1, 2]\naccessKey: rocketmq2\nsecretKey: x=", "x="),
    ],
)
def test_tools_file(tmp_path: Path, text: str, secret: str) -> None:
    """A comment begins with a number sign behind a space; values may stand in quotes."""
    path = tmp_path / "tools.yml"
    path.write_bytes(text.encode())
    assert read_tools_file(path) == Credentials("rocketmq2", secret)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", "accessKey"),
        ("accessKey: a", "secretKey"),
        ("accessKey: a\nsecretKey:", "secretKey"),
        ("accessKey: a\nsecretKey: ''", "secretKey"),
        ("accessKey: a\n  secretKey: b", "secretKey"),
        ("accessKey: a\nsecretKey: !!binary b", "secretKey"),
        ("accessKey: a\nsecretKey: *alias", "secretKey"),
        ("secretKey: b", "accessKey"),
    ],
)
def test_tools_file_without_one_of_the_two(tmp_path: Path, text: str, missing: str) -> None:
    """What is not understood is not guessed at: nothing would be signed as wanted."""
    path = tmp_path / "tools.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"has no line '{missing}: ...'"):
        read_tools_file(path)
