"""A topic on its way to the disk: what needs it waits, everything else goes on.

A message is acknowledged only once its topic is durable, so what was sent to a topic that is being
made is kept until its file is written. Then the messages that wait are stored, oldest first and a
few at a time, and only after the last of them is the topic in the table: what comes meanwhile waits
behind them, and the queue has the order of arrival.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from mailboat.errors import BrokerError
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode

_log: Final = logging.getLogger(__name__)


class Guest(Protocol):
    """Keeps what waits for a topic."""

    def proceed(self) -> bool:
        """The topic is durable: do a bounded part of what waits; tell whether nothing is left."""
        ...

    def refused(self, error: BrokerError) -> None:
        """The topic is not made, or `proceed` raised: let go of what waits."""
        ...


class TopicCreation:
    """One topic that is being made."""

    def __init__(self, config: TopicConfig, cause: str) -> None:
        """Begin with nobody waiting; one guest may come.

        Args:
            config: what the topic will look like; an administrator may change it meanwhile.
            cause: who or what makes it.
        """
        self.config = config
        self.cause = cause
        self.is_durable = False
        self.guest: Guest | None = None
        self.on_end: list[Callable[[BrokerError | None], None]] = []
        """Called once the topic is in the table, or with the reason why it was not made."""

        self._end: asyncio.Future[BrokerError | None]
        self._end = asyncio.get_running_loop().create_future()

    async def wait(self) -> TopicConfig:
        """Return the topic once it is durable and in the table.

        Raises:
            BrokerError: it was not made.
        """
        error = self._end.result() if self._end.done() else await asyncio.shield(self._end)
        if error is not None:
            raise error
        return self.config

    def proceed(self) -> bool:
        """Have the guest do a part of what waits; tell whether there is nothing left.

        A guest that raises is refused the rest. The topic is made all the same: it is on the disk,
        and some of what waited may have been acknowledged.
        """
        if self.guest is None:
            return True
        try:
            return self.guest.proceed()
        except Exception:
            # The error ends here, as that of a request does: others wait for this topic too.
            name = self.config.topic_name
            _log.exception("what waited for topic %s failed", name)
            self.guest.refused(
                BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"topic {name} was made, but what waited for it failed on this broker, "
                    "whose log says why; whether this message is stored is open, send it again",
                )
            )
            return True

    def give_up(self) -> None:
        """Let go of who waits where `end` was not reached, or failed."""
        if not self._end.done():
            self._end.set_result(
                BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"topic {self.config.topic_name} could not be finished on this broker, whose "
                    "log says why; try again",
                )
            )

    def end(self, error: BrokerError | None) -> None:
        """Tell everybody that the topic is in the table, or why it is not made."""
        self._end.set_result(error)
        if error is not None and self.guest is not None:
            self.guest.refused(error)
        for listener in self.on_end:
            listener(error)
