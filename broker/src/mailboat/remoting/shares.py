"""How much of something that is limited each peer has, so that none takes all of it.

A peer is an address: behind one may be many connections, and a connection costs nothing.
"""

from typing import Final

ADDRESSES: Final = 4
"""So many addresses can take all that there is: each has a quarter at most."""


class Shares:
    """What is taken of a limited amount, in all and by address."""

    def __init__(self, limit: int) -> None:
        """Nothing is taken of `limit` yet."""
        self.limit = limit
        self.taken = 0
        """How much is taken in all."""

        self._by_host: dict[str, int] = {}

    def excess(self, host: str, amount: int) -> str | None:
        """Return the limit that `amount` more for an address would exceed, for people, or None."""
        if self.taken + amount > self.limit:
            return f"{self.limit} in all"
        share = self.limit // ADDRESSES
        if self._by_host.get(host, 0) + amount > share:
            return f"{share} for the address {host or 'that asks'}"
        return None

    def take(self, host: str, amount: int) -> None:
        """Count `amount` for an address, also where it is too much."""
        self.taken += amount
        if amount:
            self._by_host[host] = self._by_host.get(host, 0) + amount

    def give(self, host: str, amount: int) -> None:
        """Count `amount` of an address no more."""
        self.taken -= amount
        left = self._by_host.get(host, 0) - amount
        if left:
            self._by_host[host] = left
        else:
            self._by_host.pop(host, None)
