"""One process of several, and the channel between it and the supervisor.

The channel is a pair of sockets. The process writes lines of JSON into it: `{"ready": {...}}` with
its addresses, or `{"failed": "..."}` with the sentence that says why it ends. The supervisor writes
one byte for each wish that it end. Whichever of the two is gone, however it died, the other one
reads the end of the stream: no process outlives its supervisor.

Processes are forked and not started anew, from a supervisor that has the program loaded, runs no
event loop and no thread but that of its log, of which nothing is used in a copy: N brokers start
about as fast as one, share what they have loaded, and one that is restarted is the same program
even when the installed one was changed meanwhile.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from mailboat.cli.logs import LogFormat, name_process
from mailboat.cli.main import EXIT_RUNTIME, describe_error
from mailboat.cli.serving import END_SIGNALS, Ending, run_node, watch_signals
from mailboat.config import Settings
from mailboat.node import Node

_END: Final = b"e"
_READ_BYTES: Final = 65_536


class Member:
    """A process as the supervisor sees it; it can be started again once it has ended."""

    def __init__(self, name: str, settings: Settings, log_format: LogFormat) -> None:
        """Prepare; nothing runs before `start`."""
        self.name = name
        self.settings = settings
        self.channel: socket.socket | None = None
        """The supervisor's end while the process runs."""

        self.pid = 0
        self.addresses: dict[str, str] | None = None
        """Where it serves, once it does."""

        self.ready_at_s: float | None = None
        """Monotonic time since when it serves."""

        self.failure = ""
        """The sentence that it left."""

        self._log_format = log_format
        self._unread = b""

    def start(self, inherited: Iterable[socket.socket]) -> None:
        """Fork it; `inherited` are the supervisor's sockets, which are not for the process.

        Raises:
            OSError: the system has no process or descriptor for it now.
        """
        ours, theirs = socket.socketpair()
        # A signal between the fork and the first line of the child would run our handler there.
        signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            for each in (*inherited, ours):
                each.close()
            _run(self.name, self.settings, self._log_format, theirs)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        theirs.close()
        self.pid, self.channel = pid, ours
        self.addresses, self.ready_at_s, self.failure, self._unread = None, None, "", b""

    def end(self) -> None:
        """Ask the process to end, the second time without its drain."""
        if self.channel is not None:
            with contextlib.suppress(ConnectionError):
                self.channel.send(_END)

    def kill(self) -> None:
        """End the process whatever it does."""
        if self.channel is not None:
            os.kill(self.pid, signal.SIGKILL)

    def read(self) -> int | None:
        """Take in what came through the channel; return the exit code once the process is gone.

        Codes below 0 are numbers of signals.
        """
        assert self.channel is not None
        try:
            data = self.channel.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self.channel.close()
            self.channel = None
            _, status = os.waitpid(self.pid, 0)
            return os.waitstatus_to_exitcode(status)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.failure = told.get("failed", self.failure)
            if "ready" in told:
                self.addresses = told["ready"]
                self.ready_at_s = time.monotonic()
        return None


def _run(name: str, settings: Settings, log_format: LogFormat, channel: socket.socket) -> None:
    """Be the process; never returns."""
    exit_code = EXIT_RUNTIME
    try:
        signal.set_wakeup_fd(-1)
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_DFL if _hears_signals(settings) else signal.SIG_IGN)
        # They stay blocked until the loop hears them: one that comes before waits there.
        name_process(log_format, name)
        _show_name(name)
        exit_code = _work(settings, channel)
    finally:
        logging.shutdown()
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(exit_code)


def _show_name(name: str) -> None:
    """Show the name in `ps -o comm` and `top`, where the system has a way (Linux; 15 bytes)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _work(settings: Settings, channel: socket.socket) -> int:
    def tell(**words: Any) -> None:
        # Nobody is there to read it: that will be seen from the other direction.
        with contextlib.suppress(ConnectionError):
            channel.sendall(json.dumps(words).encode() + b"\n")

    def tell_ready(node: Node) -> None:
        tell(ready=node.addresses())

    def watch(ending: Ending) -> None:
        if _hears_signals(settings):
            watch_signals(ending)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        asyncio.get_running_loop().add_reader(channel, _take_wishes, channel, ending)

    try:
        return run_node(
            settings,
            on_ready=tell_ready,
            on_failure=lambda sentence: tell(failed=sentence),
            watch=watch,
        )
    except Exception as exc:
        sentence, exit_code = describe_error(exc)
        logging.getLogger(__name__).debug("the process failed", exc_info=exc)
        tell(failed=sentence)
        return exit_code


def _hears_signals(settings: Settings) -> bool:
    """Tell whether a signal to the process itself ends it.

    That restarts a broker alone. A terminal, or what stops a service, sends a signal to all of them
    at a time: brokers that drain still need their name server then.
    """
    return settings.role != "namesrv"


def _take_wishes(channel: socket.socket, ending: Ending) -> None:
    try:
        wishes = channel.recv(_READ_BYTES)
    except ConnectionError:
        wishes = b""
    if not wishes:
        asyncio.get_running_loop().remove_reader(channel)
        ending.hurry("the supervisor is gone")
    for _ in wishes:
        ending.ask("supervisor", "a word of the supervisor")
