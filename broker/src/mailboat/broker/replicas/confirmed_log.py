"""How what replicas have confirmed becomes visible: much of it with several rounds of the loop."""

import asyncio
from collections.abc import Callable
from typing import Final

from mailboat.store.message_store import MessageStore

# Of the log: a few milliseconds' work with small messages.
_SHOWN_AT_ONCE_BYTES: Final = 512 << 10


class ConfirmedLog:
    """Shows the log up to where it is confirmed."""

    def __init__(self, store: MessageStore, on_shown: Callable[[], None]) -> None:
        """Show nothing yet; `on_shown` is called whenever more is visible."""
        self._store = store
        self._on_shown = on_shown
        self._loop = asyncio.get_running_loop()
        self._end = 0
        self._is_showing = False
        self._is_ended = False

    def confirm(self, end: int) -> None:
        """Show what lies below a physical offset, at once or soon."""
        self._end = self._store.replica.confirmed_end = end
        if not self._is_showing:
            self._show_some()

    def close(self) -> None:
        """Show no more than what is visible."""
        self._is_ended = True

    def _show_some(self) -> None:
        """Show some of what was held back; with the next round more."""
        log, dispatch, end = self._store.replica, self._store.dispatch, self._end
        shown_end = max(log.confirmed_offset, dispatch.dispatched_offset)
        is_little = not dispatch.is_holding
        log.confirmed_offset = end if is_little else min(end, shown_end + _SHOWN_AT_ONCE_BYTES)
        self._store.settle()
        self._on_shown()
        self._is_showing = log.confirmed_offset < end and not self._is_ended
        if self._is_showing:
            self._loop.call_soon(self._show_some)
