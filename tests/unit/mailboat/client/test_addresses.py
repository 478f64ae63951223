import os

import pytest

from mailboat.client.addresses import local_ip, make_client_id, parse_namesrv
from mailboat.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9876", ["127.0.0.1:9876"]),
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 ; b:2; ", ["a:1", "b:2"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        ("[::1]:9876", ["[::1]:9876"]),
    ],
)
def test_lists_of_addresses(text: str, expected: list[str]):
    """Addresses may be separated by semicolons or commas, with spaces around them."""
    assert parse_namesrv(text) == expected


@pytest.mark.parametrize("text", ["", " ; ", "host", "host:", ":9876", "host:0", "a:1;b", "a:x"])
def test_bad_list_names_the_remedy(text: str):
    """A list that cannot be used says what is expected."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_namesrv(text)


def test_local_ip_is_the_way_to_the_peer():
    """Towards this machine itself the address is the loopback one."""
    assert local_ip("127.0.0.1:9876") == "127.0.0.1"


def test_client_ids_differ():
    """Two clients of one process are two members of a group."""
    first, second = make_client_id("10.0.0.1"), make_client_id("10.0.0.1")
    assert first != second
    assert first.startswith(f"10.0.0.1@{os.getpid()}#")
