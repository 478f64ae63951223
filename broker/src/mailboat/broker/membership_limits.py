"""How much the members of groups may take up: what heartbeats leave behind, by connection.

Each connection may carry so many members, and they may take so many bytes with their ids and
subscriptions; all connections together have a limit too, half of which one address may take. What
is counted is about what the process keeps, so that small subscriptions count for what they cost.
Nothing of it is counted for `unsentBudgetBytes`: a consumer must not be closed for its groups.
"""

from collections import Counter
from dataclasses import dataclass
from sys import getsizeof
from typing import Final

from mailboat.errors import BrokerError
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.connection import Connection

MAX_PER_CONNECTION: Final = 4_000
"""A connection carries one client as a rule, which has up to 1,000 groups."""

MAX_BYTES_PER_CONNECTION: Final = 8 * 1024 * 1024
"""A thousand groups of four topics each take four."""

MAX_BYTES: Final = 256 * 1024 * 1024
MAX_BYTES_PER_ADDRESS: Final = MAX_BYTES // 2
"""Some 250,000 members: five thousand clients of one address with fifty groups each."""

MEMBER_BYTES: Final = 350
"""What a member takes besides its names."""

GROUP_BYTES: Final = 450
"""What a group takes besides its members and texts."""

_TEXT_BYTES: Final = 56
_NUMBER_BYTES: Final = 32
# In the tables of its group and of its topic, which it may be alone in.
_ENTRY_BYTES: Final = 400


@dataclass(slots=True)
class _Account:
    """What one connection has registered."""

    members: int = 0
    size_bytes: int = 0


class MembershipLimits:
    """What each connection has registered, and whether it may register more."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._accounts: dict[Connection, _Account] = {}
        self._by_address: Counter[str] = Counter()
        self.size_bytes = 0
        """Of all connections."""

    def check(self, connection: Connection, *, members: int, size_bytes: int) -> None:
        """Refuse so many more members or bytes if they are too many; what does not grow may stay.

        Raises:
            BrokerError: SYSTEM_ERROR, the connection has as many as it may have; SYSTEM_BUSY, all
                together have.
        """
        account = self._accounts.get(connection, _Account())
        if members > 0 and account.members + members > MAX_PER_CONNECTION:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"this connection has {account.members} members of groups, the limit is "
                f"{MAX_PER_CONNECTION}; divide them among several clients",
            )
        if size_bytes <= 0:
            return
        if account.size_bytes + size_bytes > MAX_BYTES_PER_CONNECTION:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the groups and subscriptions of this connection would take "
                f"{account.size_bytes + size_bytes} bytes, the limit is "
                f"{MAX_BYTES_PER_CONNECTION}; divide them among several clients",
            )
        of_address = self._by_address[connection.peer_address]
        if (
            self.size_bytes + size_bytes > MAX_BYTES
            or of_address + size_bytes > MAX_BYTES_PER_ADDRESS
        ):
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]groups and subscriptions of all clients take {self.size_bytes} bytes, "
                f"those of this address {of_address}; the limits are {MAX_BYTES} and "
                f"{MAX_BYTES_PER_ADDRESS}",
            )

    def add(self, connection: Connection, *, members: int, size_bytes: int) -> None:
        """Count so many more members and bytes; less than none are fewer."""
        account = self._accounts.setdefault(connection, _Account())
        account.members += members
        account.size_bytes += size_bytes
        assert account.members >= 0
        assert account.size_bytes >= 0
        if not account.members and not account.size_bytes:
            del self._accounts[connection]
        address = connection.peer_address
        self._by_address[address] += size_bytes
        if not self._by_address[address]:
            del self._by_address[address]
        self.size_bytes += size_bytes


def names_bytes(*names: str) -> int:
    """Return about what texts take in memory: always the same for the same texts."""
    return sum(_TEXT_BYTES + len(name) * (1 if name.isascii() else 4) for name in names)


def subscription_bytes(subscription: SubscriptionData) -> int:
    """Return what a subscription takes in memory."""
    tags, codes = subscription.tags_set, subscription.code_set
    return (
        _ENTRY_BYTES
        + getsizeof(subscription)
        + names_bytes(subscription.topic, subscription.sub_string, subscription.expression_type)
        + getsizeof(tags)
        + names_bytes(*tags)
        + getsizeof(codes)
        + _NUMBER_BYTES * len(codes)
    )
