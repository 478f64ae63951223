"""Keeps the name servers informed of this broker and its topics.

One task per name server registers every `registerNameServerPeriod`, at once when the topics
changed, and soon again when the name server could not be reached or closed the connection (it then
forgets the broker). A broker that reaches no name server goes on serving the clients it has.

Source: apache/rocketmq broker/out/BrokerOuterAPI.java (registerBrokerAll) @ rocketmq-all-5.3.3.
"""

import asyncio
import logging
import math
import random
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from mailboat.broker.supervisor import Supervisor, TaskProgress
from mailboat.broker.topics import TopicConfigManager
from mailboat.config import BrokerConfig
from mailboat.errors import BrokerError, MailboatError, PlaceTakenError, ProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.protocol.bodies import decode_kv_table
from mailboat.protocol.broker_listeners import LISTENERS_FIELD, encode_listeners
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.register_broker import (
    HELD_BY_FIELD,
    IDENTITY_FIELD,
    compress_registration,
    encode_register_broker,
    topic_lines,
)
from mailboat.protocol.topic_table import TopicConfigTable
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.turns import listed_in_turns
from mailboat.security.client_security import OPEN, ClientSecurity, ClientTls

_log = logging.getLogger(__name__)

_WHO_SIGNS: Final = (
    "innerClientAuthenticationCredentials says who this broker is, and has to be a Super user there"
)
_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 5.0
# A name server keeps what it was told for so long, whatever it refuses since.
_ROUTES_STAY_S: Final = 120.0
# Some 5,000 topics: what the broker writes, and name servers read, within a few milliseconds.
_COMPRESS_ABOVE_BYTES: Final = 256 * 1024
_CRC_MASK: Final = 0x7FFF_FFFF
_UNREGISTER_TIMEOUT_S: Final = 1.0
CHANGE_TIMEOUT_S: Final = 1.0
"""How long a request that changed a topic waits for name servers before it is answered."""


class _NameServer:
    """One name server and what it knows."""

    __slots__ = (
        "address",
        "error",
        "failures",
        "held_by",
        "is_refused",
        "is_slow",
        "last_success_ms",
        "last_success_s",
        "registered_as",
        "round_done",
        "settled",
        "task",
        "wake",
        "warned",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.registered_as: Mapping[str, str | int] = {}
        """How the broker was registered last."""

        self.failures = 0
        """Attempts that failed since the last success."""

        self.is_slow = False
        """An attempt takes so long that nobody waits for it any more."""

        self.error: str | None = None
        """Why the last attempt failed."""

        self.warned = ""
        """The last failure that was a warning since the last success."""

        self.is_refused = False
        """The last attempt was answered, or could not even be written: asking again is no use."""

        self.held_by: str | None = None
        """Address of the other broker that has this one's name there, by the last attempt."""

        self.last_success_ms: int | None = None
        """Wall time of the last success."""

        self.last_success_s = -math.inf
        """The same by the monotonic clock."""

        self.task: asyncio.Task[None] | None = None
        self.round_done = 0
        self.wake = asyncio.Event()
        self.settled = asyncio.Event()
        """Set whenever an attempt ended."""


class NameServerState(NamedTuple):
    """What a name server said last."""

    address: str
    registered: bool
    last_success_timestamp_ms: int | None
    error: str | None
    held_by: str | None = None
    """Address of another broker that has this one's name there."""


class _Body(NamedTuple):
    """What is registered, encoded once for all name servers."""

    version: tuple[int, int, int]
    is_compressed: bool
    data: bytes
    crc32: int


class NamesrvRegistration:
    """Registers one broker at all its name servers."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        security: ClientSecurity = OPEN,
        *,
        own_server: str = "",
        own_server_tls: ClientTls | None = None,
    ) -> None:
        """Prepare; `start` begins.

        The name server in this process, at `own_server`, is spoken to by `own_server_tls`.
        """
        self._config = config
        self._topics = topics
        self._broker_address = ""
        self._store_identity = ""
        self.broker_id: Callable[[], int] = lambda: config.broker_id
        """Says which number the broker has in its group now, -1 where nobody is to know it yet."""

        self.address: Callable[[], str] = lambda: self._broker_address
        """Says where clients are to connect now, "ip:port"."""

        self.listeners: Callable[[], Mapping[str, str]] = dict
        """Says where clients of each listener are to connect now, "host:port" by name."""

        self.ha_address: Callable[[], str] = str
        """Says where other replicas connect, empty where there are none."""

        self.on_master: Callable[[str, str], None] = lambda _ha_address, _address: None
        """Called with where the group's master listens for replicas, and where for clients."""

        self.may_be_of_own_group: Callable[[str], bool] = lambda _address: False
        """Tells whether another replica of this broker may serve clients at an address."""

        self._round = 0
        self._body: _Body | None = None
        self._body_turn = asyncio.Lock()
        dispatcher = Dispatcher()
        dispatcher.on_connection_closed.append(self._connection_closed)
        self._client = RemotingClient(dispatcher, name="registration", security=security)
        self._own_server = own_server
        self._own_client = RemotingClient(
            dispatcher, name="registration", security=replace(security, tls=own_server_tls)
        )
        self._servers = [_NameServer(address) for address in _addresses(config)]
        self._supervisor: Supervisor | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._announcing: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def name_servers(self) -> dict[str, bool]:
        """Addresses of the name servers, and whether the last registration there succeeded."""
        return {
            server.address: server.round_done > 0 and server.failures == 0
            for server in self._servers
        }

    def states(self) -> list[NameServerState]:
        """Return every name server with what it said last."""
        return [
            NameServerState(
                server.address,
                server.round_done > 0 and server.failures == 0,
                server.last_success_ms,
                server.error,
                server.held_by,
            )
            for server in self._servers
        ]

    def refusal(self) -> str | None:
        """Return why no client finds this broker: no name server that it reaches takes it."""
        if any(state.registered for state in self.states()):
            return None
        refusing = [server for server in self._servers if server.is_refused]
        for server in refusing:
            if server.held_by is not None:
                name = self._config.broker_name
                return (
                    f"{server.held_by} has the broker name {name} at name server {server.address}"
                )
        kept_since_s = time.monotonic() - _ROUTES_STAY_S
        for server in refusing:
            if server.last_success_s < kept_since_s:
                return f"name server {server.address} does not take this broker: {server.error}"
        return None

    def configure(self, config: BrokerConfig) -> None:
        """Follow other settings: register at name servers that are new, and leave old ones."""
        self._config = config
        wanted = _addresses(config)
        for server in [server for server in self._servers if server.address not in wanted]:
            self._servers.remove(server)
            if server.task is not None and self._supervisor is not None:
                self._supervisor.end(server.task)
                leaving = asyncio.get_running_loop().create_task(self._leave(server))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
        known = {server.address for server in self._servers}
        for address in wanted:
            if address not in known:
                server = _NameServer(address)
                self._servers.append(server)
                if self._supervisor is not None:
                    self._start_task(server, self._supervisor)
        self.request()

    def start(self, broker_address: str, supervisor: Supervisor, *, identity: str = "") -> None:
        """Begin to register the broker under `broker_address`, "ip:port".

        Name servers of ours are told the `identity` of its store, see `identity.write_identity`.
        """
        self._supervisor = supervisor
        self._broker_address = broker_address
        self._store_identity = identity
        self._topics.on_change.append(self.request)
        self.request()
        for server in self._servers:
            self._start_task(server, supervisor)

    def request(self) -> None:
        """Ask for a registration soon; returns at once. What comes meanwhile shares it."""
        self._round += 1
        for server in self._servers:
            server.wake.set()

    async def register_now(self, timeout_s: float = CHANGE_TIMEOUT_S) -> bool:
        """Register and wait until every name server that answers knows the topics as they are.

        Name servers that failed or hung last time are not waited for. Returns False when one that
        was waited for did not make it, and once the broker leaves them.
        """
        if self._is_closing:
            return False
        self.request()
        round_wanted = self._round
        waiting = [server for server in self._servers if not (server.failures or server.is_slow)]
        try:
            async with asyncio.timeout(timeout_s):
                for server in waiting:
                    while server.round_done < round_wanted and server.failures == 0:
                        server.settled.clear()
                        await server.settled.wait()
        except TimeoutError:
            for server in waiting:
                server.is_slow = server.round_done < round_wanted
        return all(server.round_done >= round_wanted for server in waiting)

    def announce(self, done: Callable[[], None]) -> None:
        """Register, and call `done` when `register_now` would be back; at once at the end."""
        if self._is_closing:
            done()
            return

        async def announce() -> None:
            await self.register_now()
            done()

        task = asyncio.get_running_loop().create_task(announce())
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def unregister(self) -> None:
        """Tell the name servers that the broker goes, after what is being announced.

        Takes a second at most, and one more if there is something to announce. Name servers of ours
        keep the routes for `routeKeptSeconds`, in case that it comes back.
        """
        self._is_closing = True
        if self.request in self._topics.on_change:
            self._topics.on_change.remove(self.request)
        if self._announcing:
            await asyncio.wait(self._announcing)
        for server in self._servers:
            if server.task is not None and self._supervisor is not None:
                self._supervisor.end(server.task)
        kept = self._route_kept()
        await asyncio.gather(*(self._unregister_at(server, kept) for server in self._servers))

    async def close(self) -> None:
        """Close the connections to the name servers."""
        self._is_closing = True
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._client.close()
        await self._own_client.close()

    def _client_of(self, server: _NameServer) -> RemotingClient:
        return self._own_client if server.address == self._own_server else self._client

    async def _leave(self, server: _NameServer) -> None:
        await self._unregister_at(server, {})
        self._client_of(server).close_address(server.address)
        _log.info("left name_server=%s", server.address)

    def _start_task(self, server: _NameServer, supervisor: Supervisor) -> None:
        async def run(progress: TaskProgress) -> None:
            await self._keep_registered(server, progress)

        server.task = supervisor.start(f"registration at {server.address}", run)

    async def _keep_registered(self, server: _NameServer, progress: TaskProgress) -> None:
        while True:
            timeout_s = self._config.register_broker_timeout_mills / 1000
            progress.beat(timeout_s + 10)
            server.wake.clear()
            round_started = self._round
            try:
                await self._register_at(server, timeout_s)
            except MailboatError as error:
                server.failures += 1
                self._log_failure(server, error)
                server.error = str(error)
                server.is_refused = isinstance(error, BrokerError | ProtocolError)
                server.held_by = error.held_by if isinstance(error, PlaceTakenError) else None
            else:
                if server.failures or not server.round_done:
                    _log.info("registered name_server=%s", server.address)
                server.failures = 0
                server.error = server.held_by = None
                server.is_refused = False
                server.last_success_ms = time.time_ns() // 1_000_000
                server.last_success_s = time.monotonic()
                server.is_slow = False
                server.round_done = round_started
            server.settled.set()
            pause_s = self._pause_s(server)
            progress.beat(pause_s + 10)
            if server.failures:
                await asyncio.sleep(pause_s)
            else:
                await _wait_at_most(server.wake, pause_s)

    def _pause_s(self, server: _NameServer) -> float:
        """Return the time to the next registration; the jitter spreads many brokers."""
        if server.failures:
            retry_s = _FIRST_RETRY_S * 2.0 ** min(server.failures - 1, 10)
            return min(retry_s, _LAST_RETRY_S) * random.uniform(0.5, 1.0)
        period_s = self._config.register_name_server_period / 1000
        return period_s * random.uniform(0.9, 1.0)

    async def _register_at(self, server: _NameServer, timeout_s: float) -> None:
        if self.broker_id() < 0:
            return
        body = await self._current_body()
        identity = self._identity()
        request = RemotingCommand.request(
            RequestCode.REGISTER_BROKER,
            {
                **identity,
                **self._route_kept(),
                **self._own_listeners(),
                **({IDENTITY_FIELD: self._store_identity} if self._store_identity else {}),
                "haServerAddr": self.ha_address() or identity["brokerAddr"],
                "compressed": body.is_compressed,
                "bodyCrc32": body.crc32,
            },
            body.data,
        )
        answer = await self._client_of(server).request(server.address, request, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            remark = answer.remark or "registration refused"
            held_by = answer.ext_fields.get(HELD_BY_FIELD)
            if held_by:
                raise PlaceTakenError(answer.code, remark, held_by)
            raise BrokerError(answer.code, remark)
        former, server.registered_as = server.registered_as, identity
        if former and identity["brokerId"] == 0 and former["brokerAddr"] != identity["brokerAddr"]:
            # It leads now, and clients find it where they find whoever leads. One that leads no
            # more takes nothing back: the next leader may have registered there already.
            await self._unregister_at(server, {}, former)
        ha_address = answer.ext_fields.get("haServerAddr")
        master_address = answer.ext_fields.get("masterAddr")
        if ha_address and master_address and self.broker_id() > 0:
            self.on_master(ha_address, master_address)
        if answer.body:
            self._topics.mark_ordered(decode_kv_table(answer.body))

    async def _unregister_at(
        self,
        server: _NameServer,
        kept: Mapping[str, int],
        former: Mapping[str, str | int] | None = None,
    ) -> None:
        """Take back what the broker is registered as now, or what it was `former`ly."""
        if not server.round_done:
            return
        identity = former or self._identity()
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, {**identity, **kept})
        try:
            client = self._client_of(server)
            await client.request(server.address, request, _UNREGISTER_TIMEOUT_S)
        except MailboatError as error:
            _log.warning("not unregistered name_server=%s: %s", server.address, error)

    def _identity(self) -> dict[str, str | int]:
        return {
            "brokerName": self._config.broker_name,
            "brokerAddr": self.address(),
            "clusterName": self._config.broker_cluster_name,
            "brokerId": self.broker_id(),
        }

    def _route_kept(self) -> dict[str, int]:
        """Return the field that RocketMQ's name servers do not know, where it says something."""
        seconds = self._config.route_kept_seconds
        return {"routeKeptMillis": seconds * 1000} if seconds else {}

    def _own_listeners(self) -> dict[str, str]:
        """Return another such field."""
        addresses = self.listeners()
        return {LISTENERS_FIELD: encode_listeners(addresses)} if addresses else {}

    async def _current_body(self) -> _Body:
        async with self._body_turn:
            current = self._topics.data_version
            version = (current.counter, current.timestamp, current.state_version)
            if self._body is None or self._body.version != version:
                self._body = await self._encode_body(DataVersion(*version))
            return self._body

    async def _encode_body(self, version: DataVersion) -> _Body:
        """Write the registration of the topics as they are now; what changes meanwhile moves their
        version on, and is in the next one."""
        topics = self._topics
        key = (version.counter, version.timestamp, version.state_version)
        is_compressed = (
            self._config.compressed_register or topics.registered_bytes > _COMPRESS_ABOVE_BYTES
        )
        if is_compressed:
            lines = await listed_in_turns(topic_lines(topics.registered()))
            data = await asyncio.to_thread(compress_registration, version, lines)
        else:
            table = {config.topic_name: config for config in topics.registered()}
            data = encode_register_broker(TopicConfigTable(version, table))
        return _Body(key, is_compressed, data, zlib.crc32(data) & _CRC_MASK)

    def _connection_closed(self, connection: Connection) -> None:
        # The name server drops a broker whose connection ends, so it must hear from us again.
        if not self._is_closing:
            _log.info("connection to a name server closed peer=%s", connection.peer)
            self.request()

    def _log_failure(self, server: _NameServer, error: MailboatError) -> None:
        text = str(error)
        if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
            text += f"; {_WHO_SIGNS}"
        if server.failures == 1:
            server.warned = ""
        if isinstance(error, PlaceTakenError) and self.may_be_of_own_group(error.held_by):
            # Another replica leads, or does no more, and is about to register as such.
            level = logging.INFO if server.failures == 1 else logging.DEBUG
            _log.log(level, "place still held name_server=%s by=%s", server.address, error.held_by)
            return
        level = logging.DEBUG if server.warned == text else logging.WARNING
        server.warned = text
        _log.log(level, "not registered name_server=%s: %s", server.address, text)


def _addresses(config: BrokerConfig) -> list[str]:
    """Return the name servers of a configuration, each once."""
    return list(dict.fromkeys(filter(None, map(str.strip, config.namesrv_addr.split(";")))))


async def _wait_at_most(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
