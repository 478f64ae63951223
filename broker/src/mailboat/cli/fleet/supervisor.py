"""Starts the processes of `--brokers N` or `--replicas N`, keeps them running, ends them together.

Before all have served once, one that ends is a failure of the start: all are ended, and the
command ends with its exit code. After that a process that ends is started again, after a second at
first and after half a minute at most: one broker that fails must not take the messages of the
others away, and what supervises this command can only restart all of it. Every end and every start
is in the log. What was changed in a running broker is gone with it, as with any restart.

The end of the command is that of its brokers, all at a time, and then of the name server. A second
signal is passed on like the first one. Who does not end in time is killed.
"""

import contextlib
import gc
import importlib
import importlib.util
import logging
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Final

from mailboat.cli.fleet.member import Member
from mailboat.cli.fleet.plan import NAME_SERVER, Fleet, with_values
from mailboat.cli.logs import LogFormat
from mailboat.cli.main import EXIT_OK, EXIT_RUNTIME
from mailboat.cli.serving import END_SIGNALS, SHUTDOWN_TIMEOUT_S, START_PATIENCE_S
from mailboat.config import Settings

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 30.0
STEADY_AFTER_S: Final = 60.0
"""Who has served for as long starts again after the shortest pause."""

END_PATIENCE_S: Final = SHUTDOWN_TIMEOUT_S + START_PATIENCE_S + 0.5
"""How long after the drain a process may take to end before it is killed."""

logger = logging.getLogger(__name__)


class _StartFailedError(Exception):
    """A process ended before all had served."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.exit_code = exit_code


class Supervisor:
    """The processes, and the one loop that waits for them and for signals."""

    def __init__(
        self,
        fleet: Fleet,
        log_format: LogFormat,
        *,
        on_ready: Callable[[list[Member]], None],
        on_failure: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            fleet: what each process is to be.
            log_format: form of their logs.
            on_ready: called with all of them once all serve.
            on_failure: called with one sentence when they cannot be started.
        """
        self._plan = fleet
        self._log_format = log_format
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._members: list[Member] = []
        self._pauses_s: dict[Member, float] = {}
        self._start_at_s: dict[Member, float] = {}
        self._wishes = 0
        """How often the end was asked for: by signals, or because something failed here."""

        self._has_served = False
        self._is_clean = True
        self._bell: tuple[socket.socket, socket.socket] | None = None

    def run(self) -> int:
        """Run until a signal; returns the exit code."""
        _load_program(self._plan)
        with self._signals():
            try:
                self._start_all()
                while not self._wishes:
                    self._turn(min(self._start_at_s.values(), default=None))
                    self._start_again()
            except _StartFailedError as exc:
                self._end_all(in_a_hurry=True)
                self._on_failure(exc.sentence)
                return exc.exit_code
            finally:
                self._end_all()
        return EXIT_OK if self._is_clean else EXIT_RUNTIME

    def _start_all(self) -> None:
        name_server = self._plan.name_server
        brokers = dict(self._plan.brokers)
        if name_server is not None:
            member = self._add(NAME_SERVER, name_server)
            # Its port may be a free one, and brokers that find it registered are ready at once.
            self._wait_ready()
            if member.addresses is not None:
                brokers = _registered_at(member.addresses[NAME_SERVER], brokers)
        if not self._wishes:
            if self._plan.is_group:
                self._start_replicas(brokers)
            else:
                for name, settings in brokers.items():
                    self._add(name, settings)
            self._wait_ready()
        if not self._wishes:
            self._has_served = True
            self._on_ready(self._members)

    def _start_replicas(self, brokers: Mapping[str, Settings]) -> None:
        """Start one after the other: each is told where those before it are."""
        before: list[str] = []
        for name, settings in brokers.items():
            member = self._add(name, with_values(settings, {"haMasterAddress": ";".join(before)}))
            self._wait_ready()
            if member.addresses is None:
                return
            before.append(member.addresses["replicas"])

    def _add(self, name: str, settings: Settings) -> Member:
        member = Member(name, settings, self._log_format)
        self._members.append(member)
        self._start(member)
        return member

    def _start(self, member: Member) -> None:
        member.start(self._sockets())
        logger.info("%s starts as process %d", member.name, member.pid)

    def _wait_ready(self) -> None:
        while not self._wishes and any(member.addresses is None for member in self._members):
            self._turn(None)

    def _start_again(self) -> None:
        now_s = time.monotonic()
        for member, at_s in list(self._start_at_s.items()):
            if at_s <= now_s:
                del self._start_at_s[member]
                try:
                    self._start(member)
                except OSError as exc:
                    # The others serve, whatever the system lacks for one more process.
                    pause_s = self._start_later(member)
                    logger.error(
                        "%s cannot be started: %s; next try in %.0f s", member.name, exc, pause_s
                    )

    def _end_all(self, *, in_a_hurry: bool = False) -> None:
        """End the brokers together, then the name server; in a hurry without their drain."""
        self._wishes = max(self._wishes, 2 if in_a_hurry else 1)
        parts = [[member for member in self._members if member.name != NAME_SERVER]]
        parts += [[member for member in self._members if member.name == NAME_SERVER]]
        for members in parts:
            self._end(members)

    def _end(self, members: list[Member]) -> None:
        drain_s = max((each.settings.broker.shutdown_drain_seconds for each in members), default=0)
        passed_on = 0
        deadline_s = time.monotonic() + drain_s + END_PATIENCE_S
        while any(member.channel is not None for member in members):
            while passed_on < min(self._wishes, 2):
                passed_on += 1
                for member in members:
                    member.end()
                if passed_on == 2:
                    deadline_s = min(deadline_s, time.monotonic() + END_PATIENCE_S)
            self._turn(deadline_s)
            if time.monotonic() >= deadline_s:
                for member in members:
                    if member.channel is not None:
                        logger.critical("%s did not end in time; it is killed", member.name)
                        member.kill()
                deadline_s += END_PATIENCE_S

    def _turn(self, until_s: float | None) -> None:
        """Wait for a signal, for a process, or until a monotonic time; take in what there is."""
        assert self._bell is not None
        heard = self._bell[0]
        by_number = {
            member.channel.fileno(): member
            for member in self._members
            if member.channel is not None
        }
        poll = select.poll()
        for number in (heard.fileno(), *by_number):
            poll.register(number, select.POLLIN)
        wait_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1000
        for number, _ in poll.poll(wait_ms):
            if number == heard.fileno():
                self._hear(heard.recv(64))
            else:
                self._read(by_number[number])

    def _hear(self, numbers: bytes) -> None:
        for number in numbers:
            logger.info("stopping on %s", signal.Signals(number).name)
            # A terminal that goes says so twice, and means no hurry.
            self._wishes = max(self._wishes, 1) if number == signal.SIGHUP else self._wishes + 1

    def _read(self, member: Member) -> None:
        was_ready = member.ready_at_s is not None
        exit_code = member.read()
        if exit_code is not None:
            self._ended(member, exit_code)
        elif member.ready_at_s is not None and not was_ready:
            assert member.addresses is not None
            logger.info("%s serves: %s", member.name, spell_addresses(member.addresses))
            member.settings = _pinned(member.settings, member.addresses)

    def _ended(self, member: Member, exit_code: int) -> None:
        how = _spell_end(exit_code, member.failure)
        if self._wishes:
            if exit_code == EXIT_OK:
                logger.info("%s %s", member.name, how)
            else:
                self._is_clean = False
                logger.error("%s %s", member.name, how)
            return
        if not self._has_served:
            sentence = f"{member.name}: {member.failure or how}"
            raise _StartFailedError(sentence, exit_code if exit_code > 0 else EXIT_RUNTIME)
        served_since_s = member.ready_at_s
        if served_since_s is not None and time.monotonic() - served_since_s >= STEADY_AFTER_S:
            self._pauses_s.pop(member, None)
        pause_s = self._start_later(member)
        logger.error("%s %s; it is started again in %.0f s", member.name, how, pause_s)

    def _start_later(self, member: Member) -> float:
        """Have a process started after a pause, which is returned; the next one is longer."""
        pause_s = self._pauses_s.get(member, FIRST_PAUSE_S)
        self._pauses_s[member] = min(2 * pause_s, LAST_PAUSE_S)
        self._start_at_s[member] = time.monotonic() + pause_s
        return pause_s

    def _sockets(self) -> Iterable[socket.socket]:
        yield from self._bell or ()
        for member in self._members:
            if member.channel is not None:
                yield member.channel

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Hear signals as bytes of a socket, so that one `poll` waits for everything."""
        self._bell = heard, rung = socket.socketpair()
        rung.setblocking(False)
        before = {number: signal.signal(number, _leave_to_the_bell) for number in END_SIGNALS}
        old_descriptor = signal.set_wakeup_fd(rung.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
            heard.close()
            rung.close()


def spell_addresses(addresses: Mapping[str, str]) -> str:
    """Return where a process serves, for people."""
    return ", ".join(f"{name} {address}" for name, address in addresses.items())


def _leave_to_the_bell(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has written the number into the socket."""


def _load_program(fleet: Fleet) -> None:
    """Import what every process needs, once and before the first fork."""
    for name in ("mailboat.broker.controller", "mailboat.namesrv.controller", "uvloop"):
        if name != "uvloop" or importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    # A collector that looked at it would copy its pages in every process.
    gc.collect()
    gc.freeze()


def _registered_at(address: str, brokers: Mapping[str, Settings]) -> dict[str, Settings]:
    """Return settings of brokers that register at a name server, before those that they have."""
    return {
        name: with_values(
            settings,
            {"namesrvAddr": ";".join(filter(None, (address, settings.broker.namesrv_addr)))},
        )
        for name, settings in brokers.items()
    }


def _pinned(settings: Settings, addresses: Mapping[str, str]) -> Settings:
    """Return settings with the ports that a process has, where it took free ones.

    Clients and the other processes know it there, so there it has to come back.
    """
    ports = {part: int(address.rpartition(":")[2]) for part, address in addresses.items()}
    values: dict[str, int | bool] = {}
    if settings.role == "namesrv":
        if not settings.namesrv.listen_port:
            values["listenPort"] = ports["namesrv"]
        http_port = settings.namesrv.http_port
    else:
        if not settings.broker.listen_port:
            values["listenPort"] = ports["broker"]
            # The port two below is served for a chosen port only.
            values["fastListenEnable"] = False
            if "replicas" in ports:
                values["haListenPort"] = ports["replicas"]
        http_port = settings.broker.http_port
    if not http_port:
        values["httpPort"] = ports["https" if "https" in ports else "http"]
    return with_values(settings, values)


def _spell_end(exit_code: int, failure: str) -> str:
    if exit_code < 0:
        return f"was ended by {signal.Signals(-exit_code).name}"
    reason = f": {failure}" if failure else ""
    return f"ended with code {exit_code}{reason}"
