"""Tests of mailboat.protocol.client_connections."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.client_connections import (
    ClientConnection,
    ConsumerConnection,
    consumer_connection_slices,
    decode_consumer_connection,
    decode_producer_connection,
    producer_connection_slices,
)

CLIENT = ClientConnection("id", "10.0.0.1:5", "PYTHON", 479)


def test_every_field_that_mqadmin_dereferences_is_written() -> None:
    """An empty answer still has all keys."""
    assert (
        b'{"connectionSet":[],"subscriptionTable":{},"consumeType":"","messageModel":"",'
        b'"consumeFromWhere":""}'
    ) == b"".join(consumer_connection_slices(ConsumerConnection()))
    assert (
        b'{"connectionSet":[{"clientId":"id","clientAddr":"10.0.0.1:5","language":"PYTHON",'
        b'"version":479}]}'
    ) == b"".join(producer_connection_slices([CLIENT]))


def test_members_survive_the_round_trip() -> None:
    """Clients and subscriptions come back."""
    connection = ConsumerConnection(
        [CLIENT], {"T": SubscriptionData("T", "a", {"a"}, {97}, 3)}, "X", "Y", "Z"
    )
    written = b"".join(consumer_connection_slices(connection))
    assert connection == decode_consumer_connection(written)
    assert [CLIENT] == decode_producer_connection(b"".join(producer_connection_slices([CLIENT])))


def test_members_of_another_shape_are_a_protocol_error() -> None:
    """A client without an id is refused."""
    with pytest.raises(RemoteProtocolError):
        decode_consumer_connection(b'{"connectionSet":[{}]}')
    with pytest.raises(RemoteProtocolError):
        decode_producer_connection(b'{"connectionSet":3}')
