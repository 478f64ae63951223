"""Whoever looks after the group: sees who leads, and promotes a replica when nobody does.

Not always with care: sometimes while somebody leads, sometimes two replicas at once.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

from background import Background
from networked_group import NetworkedGroup

from mailboat.errors import MailboatError

_LOOK_EVERY_S: Final = 0.25


class Person(Background):
    """Looks at the group and acts on it until the end."""

    def __init__(
        self,
        group: NetworkedGroup,
        random: Random,
        tell: Callable[[str], None],
        leaders_seen: Callable[[list[int]], None],
        *,
        accepts_loss: bool,
    ) -> None:
        """Tell what is done, and who says that it leads each time that may have changed."""
        super().__init__()
        self._accepts_loss = accepts_loss
        self._group = group
        self._random = random
        self._tell = tell
        self._leaders_seen = leaders_seen
        self._is_calm = asyncio.Event()
        self._is_calm.set()
        self.statuses: dict[int, dict[str, Any] | None] = {}
        self.promotions = self.refusals = 0
        self._acting = 0

    def start(self) -> None:
        """Begin to look, and to promote whenever nobody leads for a while."""
        self.begin(self._look(), self._care())

    def leave_alone(self) -> None:
        """Promote nobody until `care_again`, whatever happens."""
        self._is_calm.clear()

    def care_again(self) -> None:
        """End `leave_alone`."""
        self._is_calm.set()

    @property
    def is_acting(self) -> bool:
        """Whether something was begun that may yet change who leads."""
        return self._acting > 0

    @property
    def leaders(self) -> list[int]:
        """Who says that it leads."""
        return [
            ordinal
            for ordinal, found in self.statuses.items()
            if found is not None and found["role"] == "master"
        ]

    async def _look(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Ask all replicas how they are."""
        found = await asyncio.gather(
            *(asyncio.to_thread(self._group.status, ordinal) for ordinal in self._group.ordinals)
        )
        self.statuses = dict(zip(self._group.ordinals, found, strict=True))
        self._leaders_seen(self.leaders)

    async def _care(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self._is_calm.wait()
            if self.leaders or not self.statuses:
                continue
            await asyncio.sleep(self._random.uniform(0, 2))  # People are slow.
            if not self.leaders and self._is_calm.is_set():
                await self.promote_one_of(list(self._group.ordinals))

    async def promote_one_of(self, ordinals: list[int]) -> int | None:
        """Try these replicas in any order, or two at once; returns who leads then."""
        able = [
            ordinal
            for ordinal in ordinals
            if self._group.is_running(ordinal) and ordinal not in self._group.halted
        ]
        self._random.shuffle(able)
        if self._accepts_loss:
            # Nobody else will say that there is more.
            able.sort(key=self._end_of, reverse=True)
        elif len(able) > 1 and self._random.random() < 0.2:
            led = await asyncio.gather(*(self.promote(ordinal) for ordinal in able[:2]))
            return next((able[number] for number, leads in enumerate(led) if leads), None)
        for ordinal in able:
            if await self.promote(ordinal):
                return ordinal
        return None

    def _end_of(self, ordinal: int) -> tuple[int, int]:
        found = self.statuses.get(ordinal)
        return (found["epoch"], found["end"]) if found is not None else (-1, -1)

    async def replace(self, leader: int, within_s: float) -> bool:
        """Promote another replica than this one, which may still lead."""
        others = [ordinal for ordinal in self._group.ordinals if ordinal != leader]
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if await self.promote_one_of(others) is not None:
                return True
            await asyncio.sleep(_LOOK_EVERY_S)
        return False

    async def promote(self, ordinal: int) -> bool:
        """Promote a replica over HTTP, or with the command; tell whether it leads."""
        self._acting += 1
        try:
            if self._random.random() < 0.2:
                leads = await asyncio.to_thread(self._group.promote, ordinal, *self._words)
                reason = "see the command"
            else:
                leads, reason = await asyncio.to_thread(self._promote, ordinal)
            await self.look()
        finally:
            self._acting -= 1
        if leads:
            self.promotions += 1
            self._tell(f"replica {ordinal} was promoted")
        else:
            self.refusals += 1
            self._tell(f"replica {ordinal} was not promoted: {reason}")
        return leads

    @property
    def _words(self) -> list[str]:
        return ["--accept-loss"] if self._accepts_loss else []

    def _promote(self, ordinal: int) -> tuple[bool, str]:
        body = {"accept_loss": self._accepts_loss}
        try:
            self._group.ask(ordinal, "POST", "/api/v1/replica/promote", body)
        except MailboatError as error:
            return False, str(error)
        return True, ""

    async def hand_over(self, leader: int, to: int | None) -> None:
        """Let another replica lead."""
        self._acting += 1
        try:
            await asyncio.to_thread(
                self._group.ask, leader, "POST", "/api/v1/replica/handover", {"to": to}
            )
        except MailboatError as error:
            self._tell(f"replica {leader} did not hand over: {error}")
        else:
            self._tell(f"replica {leader} handed over")
        finally:
            self._acting -= 1
