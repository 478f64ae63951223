"""Where clients of each listener find this broker: what it tells the name servers.

An address comes, the first that there is, from `advertisedAddressesFile`, from the listener's own
`advertised`, and, where no file is named, from brokerIP1 and the listener's port. The file is
`{"outside":"192.0.2.7:30920"}`; whoever gives out addresses writes it (on Kubernetes the operator),
before or after the broker has started. A listener without an address is in no route.

A file that cannot be read leaves everything as it was; one that is not there has no addresses.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from mailboat.broker.addresses import in_brackets
from mailboat.config import BrokerConfig
from mailboat.config.listeners import NODE_IP, address_problem, parse_listeners
from mailboat.disk.files_of_others import read_file_of_others

_log: Final = logging.getLogger(__name__)

_MAX_BYTES: Final = 65_536
_decoder: Final = msgspec.json.Decoder(dict[str, str])


class ListenerAddresses:
    """The addresses of one broker's listeners."""

    def __init__(self, config: BrokerConfig, host: str) -> None:
        """Know the listeners of a broker that clients find at a host; nothing is read.

        An IPv6 address of it is in brackets.
        """
        self.listeners = parse_listeners(config.listeners)
        self.ports: dict[str, int] = {}
        """The port of each listener by its name, once it is listened on."""

        self.on_change: Callable[[], None] = lambda: None
        """Called when `addresses` returns others."""

        self.problem = ""
        """Why the file is not used as it is, empty while it is."""

        self._host = host
        self._node_ip = config.node_ip
        self._path = config.advertised_addresses_file
        self._from_file: dict[str, str] = {}

    @property
    def changes(self) -> bool:
        """Whether there is a file to look at."""
        return bool(self.listeners and self._path)

    def addresses(self) -> dict[str, str]:
        """Return the addresses that there are now, "host:port" by listener."""
        found = {}
        for listener in self.listeners:
            address = self._from_file.get(listener.name) or listener.advertised
            if not address and not self._path and listener.name in self.ports:
                address = f"{self._host}:{self.ports[listener.name]}"
            if NODE_IP in address:
                if not self._node_ip:
                    continue
                address = address.replace(NODE_IP, in_brackets(self._node_ip))
            if address:
                found[listener.name] = address
        return found

    async def look(self) -> None:
        """Read the file again."""
        try:
            found = self._decode(
                await asyncio.to_thread(read_file_of_others, self._path, _MAX_BYTES)
            )
        except FileNotFoundError:
            found = {}
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            self._note(f"{self._path} is not used, addresses are as before: {text}")
            return
        asks = not self._node_ip and any(NODE_IP in address for address in found.values())
        self._note(f"{self._path} asks for {NODE_IP}, and nodeIP is not set" if asks else "")
        if found == self._from_file:
            return
        self._from_file = found
        _log.info("addresses of listeners: %s", self.addresses())
        self.on_change()

    def _decode(self, content: bytes) -> dict[str, str]:
        """Read what the file holds for listeners that there are.

        Raises:
            ValueError: it is no such file, or an address could be used by nobody.
        """
        try:
            table = _decoder.decode(content)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise ValueError(f"it is no JSON object of addresses: {error}") from error
        names = {listener.name for listener in self.listeners}
        found = {name: address for name, address in table.items() if name in names}
        for name, address in found.items():
            problem = address_problem(address)
            if problem is not None:
                raise ValueError(f"the address of {name} {problem}")
        return found

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("%s", problem)
        self.problem = problem
