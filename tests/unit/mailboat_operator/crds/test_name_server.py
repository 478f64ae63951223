"""What the operator reads from a NameServer."""

import pytest

from mailboat_operator.crds.name_server import parse_name_server
from mailboat_operator.errors import InvalidResourceError


def test_name_server_needs_no_spec(make):
    """A name is enough: there are two name servers then."""
    assert parse_name_server(make("NameServer", {"spec": None})).spec.replicas == 2


def test_replicas_are_read(make):
    """The number of name servers is what the spec says."""
    name_server = parse_name_server(make("NameServer", {"spec.replicas": 3}))
    assert (name_server.KIND, name_server.name, name_server.spec.replicas) == (
        "NameServer",
        "ns",
        3,
    )


def test_wrong_replicas_get_one_clear_sentence(make):
    """An error names the object, the field, and the limit."""
    with pytest.raises(InvalidResourceError) as caught:
        parse_name_server(make("NameServer", {"spec.replicas": 10}))
    assert str(caught.value) == "NameServer ns: spec.replicas: expected int <= 9"
