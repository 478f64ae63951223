"""What every producer, consumer and admin client has: connections, routes, heartbeats.

A member of a producer or consumer group tells every broker of its topics so, at once and each 30 s;
a broker that learns of a change in a group pushes code 40 and the group's members share the queues
anew.

Source: apache/rocketmq client/impl/factory/MQClientInstance.java and ClientRemotingProcessor.java.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from mailboat.client.addresses import local_ip, make_client_id, parse_namesrv
from mailboat.client.background import BackgroundTasks, repeat
from mailboat.client.broker_calls import call, unregister_client
from mailboat.client.name_servers import NameServers
from mailboat.client.queue_offsets import FirstLooks
from mailboat.client.refusals import Refusals
from mailboat.client.routes import RouteCache
from mailboat.errors import MailboatError
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    encode_heartbeat,
)
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Processor
from mailboat.security.client_security import OPEN, ClientSecurity

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 30.0
ROUTE_POLL_INTERVAL_S: Final = 30.0


@dataclass(slots=True)
class ConsumerMembership:
    """How a consumer takes part in its group."""

    describe: Callable[[], ConsumerData]
    """Gives what the heartbeat says of the group; called for each heartbeat."""
    members_changed: Callable[[], None]
    """Called when a broker says that the group's members changed."""


class ClientInstance:
    """Connections, routes and heartbeats of one producer, consumer or admin client."""

    __slots__ = (
        "_consumers",
        "_dispatcher",
        "_heartbeat_wanted",
        "_known_brokers",
        "_producer_groups",
        "client_id",
        "first_looks",
        "ip",
        "name_servers",
        "refusals",
        "remoting",
        "routes",
        "security",
        "tasks",
    )

    def __init__(self, namesrv: str, security: ClientSecurity = OPEN) -> None:
        """Prepare a client of the name servers `HOST:PORT;...`; nothing is connected yet.

        Name servers and brokers are connected to and asked by `security` alike.

        Raises:
            ConfigError: `namesrv` holds no address or a bad one.
        """
        addresses = parse_namesrv(namesrv)
        self.security = security
        self._dispatcher = Dispatcher()
        self.remoting = RemotingClient(self._dispatcher, name="client", security=security)
        self.name_servers = NameServers(addresses, self.remoting)
        self.routes = RouteCache(self.name_servers)
        self.routes.on_change.append(self._route_changed)
        self.first_looks = FirstLooks()
        self.refusals = Refusals()
        self.client_id = ""
        self.ip = "127.0.0.1"
        self.tasks = BackgroundTasks()
        self._producer_groups: set[str] = set()
        self._consumers: dict[str, ConsumerMembership] = {}
        self._heartbeat_wanted = asyncio.Event()
        self._known_brokers: set[str] = set()
        self.handle(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)

    def handle(self, code: int, processor: Processor) -> None:
        """Let `processor` answer what brokers ask with `code`."""
        self._dispatcher.register(code, processor)

    async def start(self) -> None:
        """Begin polling routes and, for members of groups, sending heartbeats."""
        # A thread, because a host name may have to be looked up.
        self.ip = await asyncio.to_thread(local_ip, self.name_servers.addresses[0])
        self.client_id = make_client_id(self.ip)
        self.tasks.spawn(
            partial(repeat, self.routes.refresh_all, every_s=ROUTE_POLL_INTERVAL_S), "route poll"
        )
        self.tasks.spawn(
            partial(
                repeat,
                self.send_heartbeats,
                every_s=HEARTBEAT_INTERVAL_S,
                wake=self._heartbeat_wanted,
            ),
            "heartbeat",
        )

    async def close(self) -> None:
        """Leave every group, stop the background tasks and close the connections."""
        try:
            await self.tasks.cancel_all()
            await self._unregister()
        finally:
            await self.remoting.close()

    def join_as_producer(self, group: str) -> None:
        """Name `group` in heartbeats from now on."""
        self._producer_groups.add(group)
        self.want_heartbeat()

    def join_as_consumer(self, group: str, membership: ConsumerMembership) -> None:
        """Take part in a consumer group from now on."""
        self._consumers[group] = membership

    def want_heartbeat(self) -> None:
        """Send heartbeats soon, outside their rhythm."""
        self._heartbeat_wanted.set()

    async def send_heartbeats(self) -> None:
        """Tell every known broker who we are; one that does not answer is logged and left.

        Producers write to masters only, consumers read from slaves too.
        """
        if not self._producer_groups and not self._consumers:
            return
        addresses = self.routes.broker_addresses(masters_only=not self._consumers)
        await asyncio.gather(*(self.send_heartbeat(address) for address in addresses))

    async def introduce(self) -> None:
        """Send heartbeats to the masters that have got none yet."""
        addresses = self.routes.broker_addresses(masters_only=True)
        new = [address for address in addresses if address not in self._known_brokers]
        await asyncio.gather(*(self.send_heartbeat(address) for address in new))

    async def send_heartbeat(self, address: str) -> MailboatError | None:
        """Tell one broker who we are; a failure is logged and left to the next heartbeat.

        Return the failure where the broker refused because of who we are.
        """
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group) for group in sorted(self._producer_groups)],
            consumer_data_set=[member.describe() for member in self._consumers.values()],
        )
        # Before the answer: a broker that may know us must hear when we leave.
        self._known_brokers.add(address)
        try:
            await call(self.remoting, address, RequestCode.HEART_BEAT, body=encode_heartbeat(data))
        except MailboatError as error:
            self._known_brokers.discard(address)
            if self.refusals.tell(f"heartbeat broker={address}", error):
                return error
            logger.warning("heartbeat broker=%s: %s", address, error)
        return None

    def _route_changed(self, topic: str) -> None:
        addresses = self.routes.broker_addresses(masters_only=not self._consumers)
        if not self._known_brokers.issuperset(addresses):
            self.want_heartbeat()
        for member in self._consumers.values():
            member.members_changed()

    def _members_changed(self, connection: Connection, command: RemotingCommand) -> None:
        member = self._consumers.get(command.ext_fields.get("consumerGroup", ""))
        if member is not None:
            member.members_changed()

    async def _unregister(self) -> None:
        groups = [
            *({"consumer_group": group} for group in self._consumers),
            *({"producer_group": group} for group in self._producer_groups),
        ]

        async def leave(address: str) -> None:
            for group in groups:
                try:
                    await unregister_client(self.remoting, address, self.client_id, **group)
                except MailboatError as error:
                    # The broker notices the closed connection anyway.
                    logger.debug("unregister broker=%s: %s", address, error)
                    break

        await asyncio.gather(*map(leave, self._known_brokers))
