"""Why peers are turned away, said once a minute for each address."""

import logging
import time
from typing import Final

_log: Final = logging.getLogger(__name__)

_INTERVAL_S: Final = 60.0
_PEERS_MAX: Final = 1024


class Complaints:
    """What one server or client says of its peers."""

    def __init__(self, name: str) -> None:
        """Say it in the name of a server or client."""
        self._name = name
        self._said: dict[str, tuple[float, int]] = {}

    def complain(self, peer: str, reason: str) -> None:
        """Log why the connection to "ip:port" is closed, at most one line per address and
        minute."""
        address = peer.rpartition(":")[0]
        now_s = time.monotonic()
        last_s, suppressed = self._said.get(address, (-_INTERVAL_S, 0))
        if now_s - last_s < _INTERVAL_S:
            self._said[address] = (last_s, suppressed + 1)
            return
        if len(self._said) >= _PEERS_MAX:
            self._said.clear()
        self._said[address] = (now_s, 0)
        _log.warning(
            "connection closed server=%s peer=%s suppressed=%d: %s",
            self._name,
            peer,
            suppressed,
            reason,
        )
