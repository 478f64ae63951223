"""Administration of brokers and name servers, mailboat's or Java's.

`Admin` holds one connection pool and a part for each kind of thing: `admin.topics`, `admin.groups`,
`admin.cluster`, `admin.messages`, `admin.offsets`, `admin.standing`. The module `redrive` sends as
well, so it needs a producer beside.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java.
"""

from types import TracebackType
from typing import Self

from mailboat.client.addresses import DEFAULT_NAMESRV
from mailboat.client.admin.cluster import ClusterAdmin
from mailboat.client.admin.groups import GroupAdmin
from mailboat.client.admin.messages import MessageAdmin
from mailboat.client.admin.offsets import OffsetAdmin
from mailboat.client.admin.standing import StandingAdmin
from mailboat.client.admin.topics import TopicAdmin
from mailboat.client.instance import ClientInstance
from mailboat.security.client_security import OPEN, ClientSecurity

__all__ = [
    "Admin",
    "ClusterAdmin",
    "GroupAdmin",
    "MessageAdmin",
    "OffsetAdmin",
    "StandingAdmin",
    "TopicAdmin",
]


class Admin:
    """Everything an administrator may ask; `async with` closes it.

    It is no member of any group. Every method raises BrokerError (refused), RemotingError (no
    answer) or RouteNotFoundError (nobody knows the topic) unless it says otherwise.
    """

    def __init__(self, *, namesrv: str = DEFAULT_NAMESRV, security: ClientSecurity = OPEN) -> None:
        """Prepare an admin client; nothing is connected yet.

        Args:
            namesrv: name servers as `HOST:PORT;...`.
            security: what requests are signed with, and how servers are connected to.

        Raises:
            ConfigError: `namesrv` is not a list of addresses.
        """
        self._instance = ClientInstance(namesrv, security)
        self.cluster = ClusterAdmin(self._instance)
        self.topics = TopicAdmin(self._instance, self.cluster)
        self.groups = GroupAdmin(self._instance, self.cluster)
        self.messages = MessageAdmin(self._instance)
        self.offsets = OffsetAdmin(self._instance, self.groups, self.cluster)
        self.standing = StandingAdmin(
            self.cluster, self.topics, self.groups, self.messages, self.offsets
        )

    async def __aenter__(self) -> Self:
        """Return the client; connections are made when they are needed."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._instance.close()
