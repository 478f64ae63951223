"""Offsets of a group that are stored by several tasks at once."""

import asyncio
from collections.abc import Mapping
from typing import Any

from mailboat.client.offset_store import GroupOffsetStore
from mailboat.model.message_queue import MessageQueue

_QUEUE = MessageQueue("T", "broker-a", 0)


class _Offsets:
    """What a broker has; `commit_all` takes a while, as one of a broker that hangs does."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.is_saving = asyncio.Event()
        self.stored = 0

    async def commit(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        self.stored = queue_offset

    async def commit_all(
        self, group: str, offsets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, Exception]:
        self.is_saving.set()
        await self.goes_on.wait()
        self.stored = offsets[_QUEUE]
        return {}


async def test_a_reset_is_not_undone_by_an_older_save() -> None:
    """The save holds what was true before; the reset comes after it, and stays."""
    offsets: Any = _Offsets()
    refusals: Any = None
    store = GroupOffsetStore(offsets, "G", refusals)
    saving = asyncio.create_task(store.save({_QUEUE: 100}))
    await offsets.is_saving.wait()
    moving = asyncio.create_task(store.move(_QUEUE, 5))
    await asyncio.sleep(0)
    offsets.goes_on.set()
    await asyncio.gather(saving, moving)
    assert offsets.stored == 5
