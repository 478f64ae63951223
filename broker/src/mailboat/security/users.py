"""Who there is: users with secrets and rules, and the directory that has them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mailboat.security.access import Need
from mailboat.security.quotas import Quotas


class Rules(Protocol):
    """What one user is allowed, decoded once and replaced as a whole on a change."""

    def refusal(self, need: Need, source_ip: str) -> str | None:
        """Return None where a need is allowed from an address, else why not.

        The reason ends RocketMQ's sentence: "no matched policies" or "the decision is deny".
        """
        ...


@dataclass(frozen=True, slots=True)
class User:
    """One user as requests meet it; a change makes a new object."""

    name: str
    """Its access key too."""

    secrets: tuple[bytes, ...]
    """Keys of its signatures, at most two: the present one first, then one of before that is still
    valid for a while."""

    rules: Rules
    is_super: bool = False
    """Allowed everything."""

    is_enabled: bool = True
    """Where it is not, every request is refused as if there were no such user."""

    revision: str = ""
    """Which state of its file this is, where the file says so."""

    quotas: Quotas | None = None
    """How much it may use, None where nothing is bounded."""

    def __repr__(self) -> str:
        """Show no secret, wherever this ends up."""
        return f"User({self.name!r})"


class UserDirectory(Protocol):
    """All users, wherever they come from."""

    revision: int
    """Grows with each change that has taken effect."""

    on_changed: list[Callable[[], None]]
    """Called after each change: what is parked for a user is looked at again."""

    def get(self, access_key: str) -> User | None:
        """Return the user with an access key, also a disabled one."""
        ...
