"""The ext field of a registration that says where clients of each listener find a broker.

    mailboatListeners   {"outside":"192.0.2.7:30920"}

RocketMQ's name servers pass over ext fields that they do not know. Ours answer who asks by their
own listener of a name with the addresses of that name.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from mailboat.config.listeners import MAX_LISTENERS, ListenerName, address_problem
from mailboat.errors import RemoteProtocolError

LISTENERS_FIELD: Final = "mailboatListeners"

_decoder: Final = msgspec.json.Decoder(dict[ListenerName, str])


def encode_listeners(addresses: Mapping[str, str]) -> str:
    """Write addresses, "host:port", by the names of listeners."""
    return msgspec.json.encode(dict(addresses)).decode()


def decode_listeners(text: str) -> dict[str, str]:
    """Read addresses by the names of listeners.

    Raises:
        RemoteProtocolError: it is no such table, or has an address that nobody could use.
    """
    try:
        addresses = _decoder.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RemoteProtocolError(f"{LISTENERS_FIELD} cannot be read: {error}") from error
    if len(addresses) > MAX_LISTENERS:
        raise RemoteProtocolError(f"{LISTENERS_FIELD} has more than {MAX_LISTENERS} listeners")
    for name, address in addresses.items():
        problem = address_problem(address)
        if problem is not None:
            raise RemoteProtocolError(f"{LISTENERS_FIELD}: the address of {name} {problem}")
    return addresses
