"""The running broker: puts the parts together, starts them, and ends them in good order.

Source: apache/rocketmq broker/BrokerController.java @ rocketmq-all-5.3.3.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, NamedTuple

from mailboat import core
from mailboat.broker import live_config
from mailboat.broker.addresses import advertised_host, advertised_ip
from mailboat.broker.blocking_calls import StoreThreads
from mailboat.broker.dispatcher import Asker
from mailboat.broker.flush_service import FlushService
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.guarded_dispatcher import make_dispatcher, recheck_pull
from mailboat.broker.identity import check_identity, write_identity
from mailboat.broker.listener_addresses import ListenerAddresses
from mailboat.broker.membership import ConsumerManager, ProducerManager, close_silent
from mailboat.broker.membership_limits import MembershipLimits
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.pressure_watch import PressureWatch
from mailboat.broker.processors.checks import require_own_name
from mailboat.broker.processors.pull import PullMessageProcessor
from mailboat.broker.processors.registry import register_processors
from mailboat.broker.processors.send import SendMessageProcessor
from mailboat.broker.processors.send_rounds import make_send_rounds
from mailboat.broker.pull_request_hold import PullRequestHoldService
from mailboat.broker.queue_locks import QueueLockManager
from mailboat.broker.quotas.made_names import Kind, MadeNames
from mailboat.broker.quotas.service import UserQuotas
from mailboat.broker.reading_progress import ReadingProgress
from mailboat.broker.reading_rounds import ReadingRounds
from mailboat.broker.registration import NamesrvRegistration
from mailboat.broker.replicas.replica_file import check_no_replica
from mailboat.broker.replicas.service import ReplicaService
from mailboat.broker.retry import RetryService
from mailboat.broker.schedule import ScheduleMessageService
from mailboat.broker.sql_filters import SqlFilters
from mailboat.broker.stats import SAMPLE_PERIOD_S, BrokerStats
from mailboat.broker.stored_topics import topics_at
from mailboat.broker.supervisor import Supervisor, TaskProgress
from mailboat.broker.topics import TopicConfigManager
from mailboat.broker.transactions import TransactionalMessageService
from mailboat.broker.warm_reads import QueuePositions
from mailboat.config import BrokerConfig, Settings
from mailboat.config.listeners import parse_listeners
from mailboat.disk import Disk
from mailboat.disk.real import RealDisk
from mailboat.errors import BrokerError
from mailboat.model.hosts import encode_host
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.send_header import SendRequest
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.remoting.turns import in_turns
from mailboat.security.client_security import ClientSecurity
from mailboat.security.configured_users import inner_credentials
from mailboat.security.directory import Directory
from mailboat.security.guard import Guard, make_guard
from mailboat.security.needs import broker_rows
from mailboat.security.tls import (
    CHECK_INTERVAL_S,
    ClientContexts,
    ServerTls,
    own_client_tls,
    tls_to_itself,
)
from mailboat.security.users import UserDirectory
from mailboat.store.message_store import MessageStore

_log = logging.getLogger(__name__)

Phase = Literal["new", "recovering", "starting", "serving", "draining", "stopping", "stopped"]

# A disk that hangs is no reason to restart: it may come back.
_SAVE_MAY_TAKE_S: Final = 600.0
_EXPIRY_SCAN_S: Final = 10.0  # ClientHousekeepingService
_BUSY_SLICE_S: Final = 0.03
_IDLE_SLICE_S: Final = 0.25
_DRAIN_REQUESTS_S: Final = 3.0
_DRAIN_WRITES_S: Final = 1.0
_DRAIN_FLUSH_S: Final = 2.0
# So long the nodes of a cluster may lead clients of the group here, where nobody refuses them.
_HOLD_UP_S: Final = 3.0
_FAST_PORT_DISTANCE: Final = 2


class Ports(NamedTuple):
    """Where a broker listens."""

    clients: int
    replicas: int


class BrokerController:
    """One broker; make it where the event loop runs.

    `wait_failed` returns when the broker can no longer do its work; `supervisor.failure` says why.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk | None = None,
        own_name_server: str = "",
        users: UserDirectory | None = None,
    ) -> None:
        """Put the parts together; nothing is opened before `start`.

        Args:
            settings: of the broker.
            disk: where it stores, the real one by default.
            own_name_server: address of the name server in this process, if there is one.
            users: who there is, where requests are authenticated.

        Raises:
            OSError: `brokerIP1` or the bind address is a name that does not resolve.
            ConfigError: a file of TLS cannot be used, or requests are to be authenticated and
                nobody says who there is.
        """
        config = settings.broker
        self.tls = ServerTls.of(settings.tls, parse_listeners(config.listeners))
        """What its ports show by TLS, None where none speaks it."""

        self._own_security = ClientSecurity(
            inner_credentials(settings.security), own_client_tls(settings.tls)
        )
        self._disk = disk or RealDisk()
        self.settings = settings
        self.phase: Phase = "new"
        self.supervisor = Supervisor()
        self.stats = BrokerStats()
        self.sql_filters = SqlFilters()
        self._ip, self._host = advertised_ip(config), advertised_host(config)
        self.store_threads = StoreThreads(self.supervisor.fail)
        self.store = MessageStore(
            settings.store,
            self._disk,
            store_host=encode_host(self._ip, config.listen_port),
            runners=self.store_threads.runners,
        )
        self._make_tables(config, own_name_server)
        self.retry = RetryService(self.groups, self.topics, self.queue_locks.has_live_locks)
        self._make_reading_progress()
        self._make_flush_service()
        self._store_written = asyncio.Event()
        self.store.on_write = self._store_written.set
        self.replicas = self._make_replicas() if settings.store.is_replica else None
        self.deposed = asyncio.Event()
        """Set once another replica leads in place of this one, which must start anew."""

        self.schedule = ScheduleMessageService(
            self.store, settings.store, self._disk, self.stats, self.flush.wait
        )
        self.reading.also_unread.append(self.schedule.unread_position)
        self.transactions = TransactionalMessageService(self, self.flush, self._disk)
        self.pull_holds = PullRequestHoldService()
        self.store.dispatch.on_arrival = self.pull_holds.on_arrival
        self.guard = self._make_guard(users)
        self.directory = users if isinstance(users, Directory) else None
        self.quotas = None if self.guard is None else self._make_quotas(self.guard)
        self.dispatcher = make_dispatcher(self.guard, self.quotas, self)
        self._user_listeners: list[Callable[[], None]] = []
        self._register_processors()
        limits_of_peers = RemotingLimits.from_config(settings.remoting)
        self._server = RemotingServer(self.dispatcher, limits_of_peers, name="broker", tls=self.tls)
        self._opening: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def _make_tables(self, config: BrokerConfig, own_name_server: str) -> None:
        """Make what is known of topics, groups and members, and who is told of it."""
        config_dir = self.store.paths.config
        self.topics = TopicConfigManager(config, self._disk, config_dir)
        self.groups = SubscriptionGroupManager(
            self._disk, config_dir, auto_create=config.auto_create_subscription_group
        )
        self.offsets = ConsumerOffsetManager(self._disk, config_dir)
        limits = MembershipLimits()
        self.consumers = ConsumerManager(
            limits, notify_enable=config.notify_consumer_ids_changed_enable
        )
        self.producers = ProducerManager(limits)
        self.queue_locks = QueueLockManager(self._disk, self.store.paths.own)
        self.registration = NamesrvRegistration(
            config,
            self.topics,
            self._own_security,
            own_server=own_name_server,
            own_server_tls=tls_to_itself(self.settings.tls),
        )
        self.listener_addresses = ListenerAddresses(config, self._host)
        self.listener_addresses.on_change = self.registration.request
        self.registration.listeners = self.listener_addresses.addresses

    def _make_reading_progress(self) -> None:
        """Make what knows how far groups have read, and have the cleaner ask it."""
        self.reading = ReadingProgress(
            self.offsets,
            QueuePositions(self.store),
            self.consumers,
            lambda: self.store.dispatch.dispatched_offset,
            self.topics.readable_queues,
            self._disk.monotonic,
        )
        self.consumers.on_subscribed = self.reading.subscribed
        self.store.cleaner.read_position = self.reading.position
        self.store.cleaner.on_removed = self.reading.removed
        self.pressure_watch = PressureWatch(self.store.retention)
        self._reading_rounds = ReadingRounds(self.reading, self.store)
        self.store.cleaner.on_unread = self._reading_rounds.ask

    def _make_flush_service(self) -> None:
        """Make what makes written messages durable, and have those who wait for it ask it."""
        config = self.settings.store
        self.flush = FlushService(
            self.store,
            interval_s=config.flush_interval_commit_log / 1000,
            timeout_s=config.sync_flush_timeout / 1000,
            replicas_timeout_s=config.slave_timeout / 1000,
        )
        self.store.checkpoints.on_flush_wanted = self.flush.begin_soon
        self.offsets.save_behind(self.flush.flushed)

    def _make_guard(self, users: UserDirectory | None) -> Guard | None:
        """Make what judges each request; None where nobody is asked who it is."""
        rows = broker_rows(self.settings.broker.broker_cluster_name, topics_at(self.store))
        return make_guard(self.settings.security, users, rows)

    def _make_quotas(self, guard: Guard) -> UserQuotas:
        """Make what keeps users within their quotas."""

        def exists(kind: Kind, name: str) -> bool:
            return name in (self.topics if kind is Kind.TOPIC else self.groups).table

        made = MadeNames(self._disk, self.store.paths.own, exists)
        return UserQuotas(guard.users, guard.audit, made)

    def _make_replicas(self) -> ReplicaService:
        runners = self.store_threads.runners
        replicas = ReplicaService(
            self.settings, self.store, self._disk, runners, self, self.tls, self._own_security
        )
        self.topics.known_to_replicas = replicas.tables.known
        group = replicas.group
        group.on_confirmed = self._replicas_confirmed
        group.on_written = self._follower_wrote
        group.on_lead = self._begin_to_lead
        group.on_view = self.registration.request
        group.on_deposed = self._deposed
        self.store.commit_log.is_followed = True
        self.store.on_write = self._replica_wrote
        self.registration.broker_id = replicas.registered_id
        self.registration.address = lambda: replicas.registered_address
        self.registration.ha_address = lambda: replicas.address
        self.store.refuses = group.refusal
        self.store.replica.needed_from = group.needed_from
        self.flush.on_flushed = self._replica_flushed
        self.registration.on_master = replicas.note_master
        self.registration.may_be_of_own_group = replicas.may_be_replica
        return replicas

    @property
    def is_leading(self) -> bool:
        """Whether this broker stores messages: it has no replicas, or leads them."""
        return self.replicas is None or self.replicas.group.is_leading

    def refuse_changes(self) -> None:
        """Refuse to change topics, groups, offsets or locks where that is another one's to do.

        Raises:
            BrokerError: SYSTEM_ERROR, this replica does not lead, or not enough others follow it.
        """
        if self.replicas is not None and (reason := self.replicas.group.refusal()):
            text = "in-sync replicas not enough"
            if not self.is_leading:
                text = (
                    "Can't modify topic or subscription group from slave broker, please execute it "
                    "from master broker"
                )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{text}: {reason}")

    def refuse_messages(self) -> None:
        """Refuse to store a message where no message may be stored.

        Raises:
            BrokerError: SERVICE_NOT_AVAILABLE, this replica does not lead; SYSTEM_ERROR, not enough
                others follow it.
        """
        if self.replicas is not None and (reason := self.replicas.group.refusal()):
            if self.is_leading:
                text = f"in-sync replicas not enough: {reason}"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
            text = f"service not available now: {reason}"
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, text)

    async def known_to_replicas(self) -> None:
        """Return once the replicas in the in-sync set know all changes, at once without replicas.

        Raises:
            BrokerError: that is not known in time.
        """
        if self.replicas is not None:
            await self.replicas.tables.known()

    def topic_deleted(self, topic: str) -> None:
        """Tell replicas that a topic's messages are gone."""
        if self.replicas is not None:
            self.replicas.tables.deleted(topic)

    @property
    def port(self) -> int:
        """The port that is listened on, once the broker has started."""
        return self._server.port

    def ports(self) -> Ports:
        """Return the ports that a broker which takes this one's place listens on."""
        replicas = self.replicas
        return Ports(self.port, -1 if replicas is None else replicas.peers.port)

    @property
    def address(self) -> str:
        """The address that clients are told, "host:port"."""
        return f"{self._host}:{self.port}"

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return self._server.connection_count

    async def take_send(self, asker: Asker, request: SendRequest, body: bytes) -> None:
        """Store a message that came by no connection of ours; its answer is written to `asker`.

        It is held up where those of connections are.

        Raises:
            BrokerError: SERVICE_NOT_AVAILABLE, the broker ends; nothing is stored.
        """
        await self._server.wait_not_holding_up()
        if self.phase not in ("serving", "draining"):
            text = f"service not available now: the broker is {self.phase}"
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, text)
        self.dispatcher.take_send(asker, request, body)

    async def start(self) -> None:
        """Open the store, listen, and register; on return clients are served.

        Raises:
            StoreError: the store or one of the tables cannot be opened.
            ConfigError: a file of TLS for own connections cannot be used.
            OSError: the address cannot be listened on, or the file system refuses.
        """
        try:
            await self._start()
        except BaseException:
            try:
                await self.shutdown()
            except OSError as error:
                _log.error(
                    "what was opened before the start failed is not cleanly closed: %s", error
                )
            raise

    async def wait_failed(self) -> str:
        """Return what failed, once the broker can no longer do its work."""
        return await self.supervisor.wait_failed()

    async def drain(self, seconds: float) -> None:
        """Tell the name servers that no topic takes messages here, and go on serving meanwhile.

        Producers learn it with their next look at the route; until then their sends are stored.
        """
        if self.phase != "serving":
            return
        self.phase = "draining"
        _log.info("draining seconds=%g: no name server offers this broker to producers", seconds)
        self.topics.stop_taking_messages()
        await self.registration.register_now()
        await asyncio.sleep(seconds)

    def change_config(self, changes: Mapping[str, str]) -> None:
        """Change live settings, all of them or none.

        Raises:
            ConfigError: a key is unknown or needs a restart, or a value is bad.
        """
        live_config.change_live(
            self, self.flush, self._send_processor, self._rounds, self._pull_processor, changes
        )

    async def shutdown(self) -> None:
        """End in good order: what was read is answered and durable, the store is closed clean.

        Raises:
            OSError: a table or the store could not be saved; everything else is ended all the same.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        # Whoever gives up waiting must not leave the store half closed.
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self.phase = "stopping"
        if self.replicas is not None:
            await self.replicas.leave()
        was_replaced = self.replicas is not None and self.replicas.was_replaced
        held_up_until_s = self._disk.monotonic() + _HOLD_UP_S
        if was_replaced:
            self._server.hold_up()
        else:
            await self._server.stop_accepting()
        await self.registration.unregister()
        await self.pull_holds.close()
        await self.dispatcher.drain(_DRAIN_REQUESTS_S)
        await self.topics.settle(_DRAIN_REQUESTS_S)
        await self._drain_flush()
        if self.quotas is not None:
            self.quotas.release_answers()
        await self._server.close_connections(_DRAIN_WRITES_S)
        # What came in until now may have left something behind again.
        await self.pull_holds.close()
        self.consumers.close()
        if self.replicas is not None:
            await self._drain_flush()
            await self.replicas.release()
        await self.supervisor.stop()
        await self.registration.close()
        if self.replicas is not None:
            await self.replicas.close()
        await self.store_threads.drain()
        await self._drain_flush()
        try:
            await self.flush.close()
            if await self._is_store_open():
                await asyncio.to_thread(self._close_files)
                if self.replicas is not None:
                    await asyncio.to_thread(self.replicas.note_clean)
        finally:
            self.store_threads.close()
            if self.guard is not None:
                for listener in self._user_listeners:
                    self.guard.users.on_changed.remove(listener)
                await asyncio.to_thread(self.guard.close)
            if was_replaced:
                await asyncio.sleep(max(held_up_until_s - self._disk.monotonic(), 0))
            await self._server.stop_accepting()
            self.phase = "stopped"

    async def _start(self) -> None:
        config = self.settings.broker
        self.phase = "recovering"
        identity_path = self.store.paths.identity
        check_identity(self._disk, identity_path, config)
        if self._own_security.tls is not None:
            # What is wrong with the files is said now, and not when they are needed.
            await asyncio.to_thread(ClientContexts, self._own_security.tls)
        if self.replicas is None:
            check_no_replica(self._disk, self.store.paths.replica)
        for table in (self.topics, self.groups, self.offsets, self.queue_locks, self.schedule):
            await asyncio.to_thread(table.load)
        if self.quotas is not None:
            await asyncio.to_thread(self.quotas.made.load)
        if self.replicas is not None:
            await asyncio.to_thread(self.replicas.load)
        # Recovery reads what may be gigabytes; HTTP shows its progress meanwhile.
        self._opening = asyncio.create_task(asyncio.to_thread(self._open_store))
        await asyncio.shield(self._opening)
        # Whoever has never held a message had no members that are to come back.
        is_restart = self.store.commit_log.end > 0
        identity = await asyncio.to_thread(write_identity, self._disk, identity_path, config)
        if self.replicas is not None:
            await asyncio.to_thread(self.replicas.adopt)
        await asyncio.to_thread(self.schedule.open)
        self.phase = "starting"
        await self._server.start(config.bind_address, config.listen_port)
        self.store.commit_log.move_to(encode_host(self._ip, self.port))
        await self._listen_on_fast_port()
        for listener in self.listener_addresses.listeners:
            port = await self._server.start_listener(config.bind_address, listener)
            self.listener_addresses.ports[listener.name] = port
        if self.listener_addresses.changes:
            await self.listener_addresses.look()
        if self.replicas is not None:
            # What is refused meanwhile is tried three times within milliseconds, and given up.
            self.replicas.group.on_handing_over = self._server.hold_up
            self.replicas.group.on_leading_on = self._server.go_on
            host = config.bind_address
            await self.replicas.start(
                host, self._host, self.port, self.supervisor, self._listen_as_leader
            )
        self._start_tasks()
        self.registration.start(self.address, self.supervisor, identity=identity)
        await self.registration.register_now()
        self._reading_rounds.start(self.supervisor, is_restart=is_restart)
        if self.replicas is not None:
            await self.replicas.led_alone()
        self.phase = "serving"
        name = config.broker_name
        _log.info("broker serves name=%s address=%s, %s", name, self.address, core.FOUND)

    # -- replicas -------------------------------------------------------------------------------

    def _replica_wrote(self) -> None:
        self._store_written.set()
        assert self.replicas is not None
        self.replicas.group.appended()

    def _replicas_confirmed(self) -> None:
        self.flush.settle()
        assert self.replicas is not None
        self.replicas.java_slaves.confirmed()

    def _replica_flushed(self) -> None:
        assert self.replicas is not None
        self.replicas.group.flushed()
        self.replicas.java_master.flushed()

    def _follower_wrote(self) -> None:
        """Flush what came from the master, where that is promised."""
        self.flush.settle_soon()

    def _begin_to_lead(self, epoch: int) -> None:
        assert self.replicas is not None
        has_followed, self.store.commit_log.is_followed = self.store.commit_log.is_followed, False
        self.offsets.set_back(self.store.queues.next_offset)
        self.replicas.tables.lead(epoch)
        self._pull_processor.is_slave = False
        self.replicas.note_lead()
        if has_followed:
            self._start_leaders_tasks()
        self.registration.request()

    def _deposed(self, reason: str) -> None:
        _log.warning("this broker leads no more: %s", reason)
        self.deposed.set()

    def _open_store(self) -> None:
        self.store.open()
        if self.replicas is None:
            self.offsets.set_back(self.store.max_offset)

    async def _listen_on_fast_port(self) -> None:
        """Listen where clients with vipChannelEnabled connect; the broker does without it."""
        config = self.settings.broker
        port = config.listen_port - _FAST_PORT_DISTANCE
        if not config.fast_listen_enable or port <= 0:
            return
        try:
            await self._server.start(config.bind_address, port)
        except OSError as error:
            _log.warning(
                "the port for clients with vipChannelEnabled is not available port=%d: %s",
                port,
                error,
            )

    async def _listen_as_leader(self) -> int:
        """Listen where the group's Service is to lead; return the port.

        Raises:
            OSError: the port is not available.
        """
        port = self.settings.store.leader_listen_port
        return await self._server.start(self.settings.broker.bind_address, port)

    def _start_tasks(self) -> None:
        supervisor, config = self.supervisor, self.settings.broker
        supervisor.start("store background", self._run_store)
        if self.replicas is None:
            self._start_leaders_tasks()
        self.flush.start(supervisor)
        save_period_s = config.flush_consumer_offset_interval / 1000
        supervisor.start_periodic(
            "saving of tables", save_period_s, self._save_tables, may_take_s=_SAVE_MAY_TAKE_S
        )
        supervisor.start_periodic(
            "search for silent clients", _EXPIRY_SCAN_S, self._expire, may_take_s=_SAVE_MAY_TAKE_S
        )
        supervisor.start_periodic("statistics", SAMPLE_PERIOD_S, self.stats.sample)
        if self.listener_addresses.changes:
            supervisor.start_periodic(
                "addresses of listeners",
                CHECK_INTERVAL_S,
                self.listener_addresses.look,
                may_take_s=_SAVE_MAY_TAKE_S,
            )
        if self.tls is not None:
            look = partial(asyncio.to_thread, self.tls.look)
            # A folder that hangs is no reason to restart, as a disk that does.
            supervisor.start_periodic(
                "files of TLS", CHECK_INTERVAL_S, look, may_take_s=_SAVE_MAY_TAKE_S
            )

    def _start_leaders_tasks(self) -> None:
        """Start what stores messages by itself."""
        self.supervisor.start("delayed messages", self.schedule.run)
        self.supervisor.start("transactions", self.transactions.run)

    def _register_processors(self) -> None:
        register_processors(self.dispatcher, self)
        self._send_processor = SendMessageProcessor(self, self.flush)
        self._pull_processor = PullMessageProcessor(self, self.pull_holds)
        store_others, arrivals = self.dispatcher.store_gathered, self._pull_processor.arrivals
        self._rounds = make_send_rounds(
            self, self.flush, self._send_processor, store_others, arrivals
        )
        if self.guard is not None and self.quotas is not None:
            self._pull_processor.recheck = partial(recheck_pull, self.guard)
            self._user_listeners = [self.pull_holds.check_all, self.quotas.users_changed]
            if self._rounds is not None:
                self._user_listeners.append(self._rounds.withdraw_all)
            self.guard.users.on_changed += self._user_listeners
        if self.replicas is not None:
            self._pull_processor.is_slave = True
            replicas = self.replicas
            self._pull_processor.hears_master = lambda: replicas.hears_master
        own_name = partial(require_own_name, self)
        self.dispatcher.use(self._send_processor, self._pull_processor, own_name, self._rounds)
        self.schedule.restorer = self.transactions.restorer = self._rounds
        self.dispatcher.on_writing_resumed.append(self.pull_holds.writing_resumed)
        self.dispatcher.on_connection_closed += [
            self.consumers.connection_closed,
            self.producers.connection_closed,
            self.pull_holds.connection_closed,
        ]

    async def _drain_flush(self) -> None:
        """Let the senders that wait for a flush have their answers, for as long as one may take."""
        if not self.store.is_open:
            return
        try:
            async with asyncio.timeout(_DRAIN_FLUSH_S):
                await self.flush.drain()
        except TimeoutError:
            _log.warning("senders still wait for a flush that does not end")

    async def _run_store(self, progress: TaskProgress) -> None:
        """Give the store its slices: often while it is written to, seldom while it rests."""
        written = self._store_written
        while True:
            written.clear()
            self.store.background()
            if self.store.has_unwritten:
                written.set()
            progress.beat()
            await asyncio.sleep(_BUSY_SLICE_S)
            # A write ends the rest: a burst must not fill a small volume before the disk is seen.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SLICE_S):
                    await written.wait()

    async def _save_tables(self) -> None:
        """Save what changed; a full disk is no reason to stop, the next round tries again."""
        tables = (self.offsets, self.topics, self.groups, self.queue_locks, self.schedule)
        saves = [table.persist for table in tables]
        if self.quotas is not None:
            saves.append(self.quotas.made.persist)
        for save in saves:
            try:
                await save()
            except OSError as error:
                _log.warning("a table is not saved, to be tried again: %s", error)

    async def _expire(self) -> None:
        if self.is_leading:
            await in_turns(self.queue_locks.expire())
        timeout_s = self.settings.broker.channel_expired_timeout / 1000
        await close_silent(self.consumers, self.producers, timeout_s)

    async def _is_store_open(self) -> bool:
        """Tell whether the store was opened; waits for an opening that was given up."""
        if self._opening is None:
            return False
        await asyncio.wait({self._opening})
        return self._opening.exception() is None

    def _close_files(self) -> None:
        """Save the tables and close the store, each even if another cannot be."""
        with contextlib.ExitStack() as steps:
            # Last of all: what is read or delivered counts as such once the store has made it
            # durable.
            steps.callback(self.schedule.persist_blocking)
            steps.callback(self._save_offsets_of_durable_log)
            steps.callback(self.store.close)
            for table in (self.groups, self.topics, self.queue_locks):
                steps.callback(table.persist_blocking)
            if self.quotas is not None:
                steps.callback(self.quotas.made.persist_blocking)

    def _save_offsets_of_durable_log(self) -> None:
        if self.store.flushed_offset >= self.store.commit_log.end:
            self.offsets.persist_blocking()
