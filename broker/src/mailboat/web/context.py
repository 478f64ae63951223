"""What the HTTP handlers may look at; the node fills it in as the process comes up."""

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mailboat.config import Settings
from mailboat.security.users import UserDirectory

if TYPE_CHECKING:
    from mailboat.broker.controller import BrokerController
    from mailboat.namesrv.controller import NamesrvController
    from mailboat.security.tls import ServerTls

Phase: TypeAlias = Literal["starting", "serving", "stopping"]

is_stranger: Final = ContextVar("is_stranger", default=False)
"""Whether a request is answered that does not say who it is of, where that is known of others."""


@dataclass(slots=True)
class WebContext:
    """The parts of one process and how far it is."""

    settings: Settings
    namesrv: "NamesrvController | None" = None
    broker: "BrokerController | None" = None
    users: UserDirectory | None = None
    """Whom HTTP Basic is checked against; without them only bearer tokens are taken."""

    phase: Phase = "starting"
    failure: str | None = None
    """Why the process is about to end, once it is."""

    started_monotonic: float = field(default_factory=time.monotonic)

    @property
    def tls(self) -> "ServerTls | None":
        """What the ports of the process show by TLS now, None where none speaks it."""
        part = self.broker or self.namesrv
        return None if part is None else part.tls

    def certified_name(self, transport: asyncio.BaseTransport | None) -> str:
        """Return the user that the certificate at the other end of a connection names, or ""."""
        return "" if self.tls is None else self.tls.certified_name(transport)

    @property
    def uptime_s(self) -> float:
        """Seconds since the process began to start."""
        return time.monotonic() - self.started_monotonic
