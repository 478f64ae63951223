"""What the HTTP handlers may look at; the node fills it in as the process comes up."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from mailboat.config import Settings

if TYPE_CHECKING:
    from mailboat.broker.controller import BrokerController
    from mailboat.namesrv.controller import NamesrvController

Phase: TypeAlias = Literal["starting", "serving", "stopping"]


@dataclass(slots=True)
class WebContext:
    """The parts of one process and how far it is."""

    settings: Settings
    namesrv: "NamesrvController | None" = None
    broker: "BrokerController | None" = None
    phase: Phase = "starting"
    failure: str | None = None
    """Why the process is about to end, once it is."""

    started_monotonic: float = field(default_factory=time.monotonic)

    @property
    def uptime_s(self) -> float:
        """Seconds since the process began to start."""
        return time.monotonic() - self.started_monotonic
