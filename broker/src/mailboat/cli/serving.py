"""Running the parts of one process until it is asked to end, and ending them in order."""

import asyncio
import gc
import importlib
import logging
import os
import signal
from collections.abc import Callable
from typing import Any, Final, NoReturn

from mailboat.cli.main import EXIT_OK, EXIT_RUNTIME
from mailboat.config import Settings
from mailboat.node import Node

SHUTDOWN_TIMEOUT_S: Final = 7.5
"""How long an orderly end may take once shutdownDrainSeconds are over; after that the process ends
with exit code 1."""

START_PATIENCE_S: Final = 2.0
"""How long a signal waits for a start that is under way, before it breaks it off. Both together
stay below the 10 s within which SIGTERM is answered."""

_ON_HANGUP: Final = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, *_ON_HANGUP)
"""What asks a server command for its end; a terminal that goes does, but for `nohup`."""

logger = logging.getLogger(__name__)


class Ending:
    """Whether somebody wants the end: `stopped` is done then, `hurried` once the same one asks
    again.

    Who asks counts: what ends a whole machine sends a signal to each of its processes, and the
    supervisor that gets one too passes it on. That is not yet a hurry.
    """

    def __init__(self) -> None:
        """Begin with nobody; make it where the event loop runs."""
        loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[None] = loop.create_future()
        self.hurried: asyncio.Future[None] = loop.create_future()
        self._askers: set[str] = set()

    def ask(self, asker: str, reason: str) -> None:
        """Ask for the end, or a second time for the end now."""
        logger.info("stopping on %s", reason)
        _set(self.stopped)
        if asker in self._askers:
            _set(self.hurried)
        self._askers.add(asker)

    def hang_up(self) -> None:
        """Ask for the end as the terminal goes: shell and kernel both say so, and mean no hurry."""
        logger.info("stopping on SIGHUP")
        _set(self.stopped)

    def hurry(self, reason: str) -> None:
        """Ask for the end now."""
        logger.warning("stopping now: %s", reason)
        _set(self.stopped)
        _set(self.hurried)


Watch = Callable[[Ending], None]
"""Called on the loop; asks for the end when whatever it watches wants it."""


def run_node(
    settings: Settings,
    *,
    on_ready: Callable[[Node], None],
    on_failure: Callable[[str], None],
    watch: Watch | None = None,
) -> int:
    """Run a process's parts until the end is asked for or a failure; returns the exit code.

    Args:
        settings: what runs, and how.
        on_ready: called once clients are served.
        on_failure: called with one sentence when a part can no longer do its work.
        watch: who may ask for the end; by default signals, see `watch_signals`.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(Node(settings), on_ready, on_failure, watch or watch_signals))


def watch_signals(ending: Ending) -> None:
    """Let `END_SIGNALS` ask for the end."""
    loop = asyncio.get_running_loop()
    for number in END_SIGNALS:
        if number == signal.SIGHUP:
            loop.add_signal_handler(number, ending.hang_up)
        else:
            loop.add_signal_handler(number, ending.ask, "signal", number.name)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed (extra `fast`), else the standard one."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(
    node: Node,
    on_ready: Callable[[Node], None],
    on_failure: Callable[[str], None],
    watch: Watch,
) -> int:
    """Start, say so, run until the end is asked for or something failed, and end in order."""
    ending = Ending()
    watch(ending)
    stopped = ending.stopped
    start = asyncio.ensure_future(node.start())
    await _first_of(start, stopped)
    if stopped.done():
        await _finish_start(start)
    start.result()
    if not stopped.done():
        on_ready(node)
        # What is loaded by now stays for good; the collector need not look at it again.
        gc.collect()
        gc.freeze()
    failed = asyncio.ensure_future(node.wait_failed())
    await _first_of(failed, stopped)
    if stopped.done():
        drain = asyncio.ensure_future(node.drain())
        await _first_of(drain, failed, ending.hurried)
        drain.cancel()
        failed.cancel()
        return await _end(node, EXIT_OK)
    on_failure(failed.result())
    return await _end(node, EXIT_RUNTIME)


async def _finish_start(start: asyncio.Future[None]) -> None:
    """Wait for a start that a signal came into; a long recovery is broken off instead.

    Nothing was promised to anybody yet, and the next start recovers from the same log.
    """
    await asyncio.wait({start}, timeout=START_PATIENCE_S)
    if not start.done():
        logger.warning("stopped during recovery; the next start begins it again")
        _exit_now(EXIT_OK)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _end(node: Node, exit_code: int) -> int:
    try:
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await node.shutdown()
    except TimeoutError:
        logger.critical("the orderly end took longer than %.1f s", SHUTDOWN_TIMEOUT_S)
        _exit_now(EXIT_RUNTIME)
    logger.info("stopped")
    return exit_code


def _exit_now(exit_code: int) -> NoReturn:
    """End the process without waiting for threads, which may hang in the file system."""
    logging.shutdown()
    os._exit(exit_code)
