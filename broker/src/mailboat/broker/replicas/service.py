"""Replication of one broker: its file, its links, its group, from the start to the end."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from mailboat.broker.addresses import replicas_ip
from mailboat.broker.replicas.by_hand import hand_over
from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.broker.replicas.java_master import JavaMaster
from mailboat.broker.replicas.java_slave import JavaSlaves
from mailboat.broker.replicas.java_tables import JavaTables
from mailboat.broker.replicas.lease_store import LeaseStore
from mailboat.broker.replicas.pace import Pace
from mailboat.broker.replicas.peers import Peers
from mailboat.broker.replicas.replica_file import ReplicaFile, new_store_id
from mailboat.broker.replicas.report import (
    ReplicaReport,
    report,
    report_java_master,
    report_java_slaves,
)
from mailboat.broker.replicas.shared_tables import Managers, SharedTables
from mailboat.broker.replicas.store_import import Imported, ImportRefusedError, StoreImport
from mailboat.broker.supervisor import Supervisor, TaskProgress
from mailboat.config import Settings
from mailboat.config.store import MessageStoreConfig
from mailboat.disk import Disk
from mailboat.disk.files_of_others import read_file_of_others
from mailboat.disk.real import RealDisk
from mailboat.errors import ConfigError
from mailboat.model.hosts import encode_host, format_host
from mailboat.replication import state
from mailboat.replication.durable import Durable
from mailboat.replication.lease_manifest import MOST_MEMBERS, identity
from mailboat.replication.times import Times
from mailboat.replication.wire import Open
from mailboat.security.client_security import OPEN, ClientSecurity
from mailboat.security.tls import ServerTls
from mailboat.store.message_inner import Runners
from mailboat.store.message_store import MessageStore
from mailboat.store.moving_aside import aside_bytes, move_aside
from mailboat.store.opening import was_used_by_another_broker

if TYPE_CHECKING:
    from mailboat.broker.replicas.kubernetes.api import KubeApi
    from mailboat.broker.replicas.kubernetes.leader_endpoints import LeaderEndpoints

_log: Final = logging.getLogger(__name__)

# Before the next one is due, a renewal without an answer has been given up.
_OF_A_RENEWAL: Final = 0.75
# An end in order waits for two of them.
_ANSWER_WITHIN_S: Final = 2.5
_RELEASE_WITHIN_S: Final = 2.0
_SEEN_DEAD_S: Final = 0.5
_LOOK_AT_LOG_S: Final = 0.2
_SECRET_MAX_BYTES: Final = 65_536
_GIVE_UP_WITHIN_S: Final = 60.0
# After a start the others are linked soon, or away.
_LINKED_WITHIN_S: Final = 5.0
# A replica that needs no other one leads after a few rounds of the group and writes of its file.
_LEADS_WITHIN_S: Final = 5.0


class ReplicaService:
    """What a broker that is a replica has beside all others."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        disk: Disk,
        runners: Runners,
        managers: Managers,
        tls: ServerTls | None = None,
        security: ClientSecurity = OPEN,
    ) -> None:
        """Describe it; `load` comes before the store is opened, `start` afterwards.

        Other replicas connect as `tls` says, and this one to them with `security`; plainly, where
        the ports of the group take nothing else.
        """
        self._settings = settings
        self._store = store
        self._disk = disk
        self._managers = managers
        own = self._state_settings()
        by_hand = own.by_hand
        voters = 0 if by_hand is None else by_hand.replicas - by_hand.min_in_sync + 1
        self._kube: KubeApi | None = None
        self._leases: LeaseStore | None = None
        self._endpoints: LeaderEndpoints | None = None
        self._file = ReplicaFile(disk, store.paths.replica, own.ordinal, voters)
        self._durable: Durable | None = None
        self._is_begun = self._is_importing = False
        # Whether others, if there are any where it was told to look, would have been heard by now.
        self._has_waited = not settings.store.ha_master_address
        self._waiting: asyncio.TimerHandle | None = None
        self._made_s = disk.monotonic()
        self._secret = b""
        self._address = self._client_address = self._leaders_address = ""
        timeout_s = settings.store.slave_timeout / 1000
        self.tables = SharedTables(managers, disk, store.paths.own, timeout_s)
        self._pace = Pace(disk.monotonic(), _copy_rate(settings.store))
        self.group = ReplicaGroup(own, store, disk, runners, self._file, self.tables, self._pace)
        self.peers = Peers(
            self.group,
            self._open,
            filter(None, settings.store.ha_master_address.split(";")),
            self._file.peers,
            settings.store.total_replicas if by_hand is not None else MOST_MEMBERS,
            are_counts_fixed=by_hand is not None,
            tls=tls,
            # Others of the group take TLS where this one does; `security` may be for name servers.
            client_tls=security.tls if tls is not None and tls.mode != "disabled" else None,
        )
        self.java_slaves = JavaSlaves(
            store.replica,
            settings.store.mapped_file_size_commit_log,
            runners.reads,
            self._pace,
            lambda: self.group.is_leading,
        )
        self.java_master = JavaMaster(
            store,
            settings.store,
            self._refuses_java_master,
            self._followed_java_master,
            self.peers.try_again,
            security,
        )
        self.java_tables = JavaTables(managers, self.java_master, lambda: store.replica.end)
        self.group.on_silent = self._silent
        self.java_slaves.on_damage = store.lookup.on_damage = self.group.repair.note

    def _state_settings(self) -> state.Settings:
        config = self._settings.store
        role = config.broker_role
        boot, by_hand, times = uuid.uuid4().hex, None, Times()
        is_sync = role == "SYNC_MASTER" or (role == "SLAVE" and config.in_sync_replicas > 1)
        if config.lease_name:
            boot = identity(config.pod_name, config.pod_uid, boot)
            times = Times.of_lease(config.lease_seconds)
        else:
            least = config.in_sync_replicas if is_sync else 1
            by_hand = state.ByHand(config.total_replicas, least, begins=role != "SLAVE")
        return state.Settings(
            self._settings.broker.broker_id,
            boot=boot,
            kernel_boot=self._disk.boot_id(),
            is_sync_master=is_sync,
            is_sync_flush=config.flush_disk_type == "SYNC_FLUSH",
            by_hand=by_hand,
            min_in_sync=config.in_sync_replicas if is_sync else 1,
            times=times,
        )

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings."""
        self._pace.bytes_per_second = _copy_rate(config)

    def load(self) -> None:
        """Read what must not be forgotten, and hold back what is not confirmed; on any thread.

        Raises:
            ConfigError: the file with the secret cannot be read, or is empty; there is no way to
                the lease.
            DamagedStoreError: the file cannot be understood.
            OSError: it cannot be read, or a log that is to go cannot be moved aside.
        """
        self._secret = _read_secret(self._settings.store.ha_secret_file)
        if self._settings.store.lease_name:
            self._open_leases()
        if was_used_by_another_broker(self._disk, self._store.paths):
            # What RocketMQ has cut and written since belongs to no epoch.
            self._file.forget()
        self._durable = self._file.read()
        if self._durable is not None and self._file.begins_anew:
            move_aside(self._disk, self._store.paths)
            self._file.begins_anew = False
            self._durable = Durable(new_store_id())
            self._file.write(self._durable)
        elif self._durable is not None and self._file.is_moved:
            self._file.write(self._durable)
        self.group.aside_bytes = aside_bytes(self._disk, self._store.paths)
        self.tables.load()
        if self._durable is not None:
            self._store.replica.show_below(self._durable.confirmed)
            by_hand = self.group.by_hand
            if by_hand is None or min(by_hand.replicas, by_hand.min_in_sync) > 1:
                self._store.commit_log.on_end_lost = self._lose_end

    def _open_leases(self) -> None:
        # They bring an HTTP client, which no other broker needs.
        from mailboat.broker.replicas.kubernetes.api import KubeApi
        from mailboat.broker.replicas.kubernetes.kube_lease import KubeLease

        config = self._settings.store
        timeout_s = Times.of_lease(config.lease_seconds).renew_s * _OF_A_RENEWAL
        timeout_s = min(timeout_s, _ANSWER_WITHIN_S)
        self._kube = KubeApi(self._settings.security.kube_api_folder, timeout_s)
        self._leases = KubeLease(
            self._kube,
            config.lease_name,
            config.lease_seconds,
            lambda: self._durable.seen if self._durable is not None else 0,
        )

    def _make_endpoints(
        self, api: "KubeApi", ip: str, listen: Callable[[], Awaitable[int]]
    ) -> "LeaderEndpoints":
        from mailboat.broker.replicas.kubernetes.leader_endpoints import LeaderEndpoints, Led, Pod

        config, group = self._settings.store, self.group

        def led() -> Led | None:
            leading = group.replica.leading if group.is_leading else None
            return None if leading is None else Led(leading.epoch, leading.renewals)

        pod = Pod(config.pod_name, config.pod_uid, ip)
        return LeaderEndpoints(api, f"{config.lease_name}-leader", pod, led, listen)

    def note_lead(self) -> None:
        """Have clients led here: this replica has begun to lead."""
        if self._endpoints is not None:
            self._endpoints.wake()

    def _secret_now(self) -> bytes:
        """Return the secret as its file has it: somebody may have replaced it, here as elsewhere.

        One that cannot be read is as it was.
        """
        if self._secret:
            with contextlib.suppress(ConfigError):
                self._secret = _read_secret(self._settings.store.ha_secret_file)
        return self._secret

    def _lose_end(self, end: int) -> None:
        """Note that the log ends before what was acknowledged: others have it."""
        assert self._durable is not None
        _log.error(
            "the log was durable beyond %d and is damaged there: this replica counts for nothing "
            "before it has got the rest from a master",
            end,
        )
        self._durable = self._durable._replace(is_whole=False)
        if self.group.by_hand is None:
            # Who has lost something is no member of the recorded set.
            self._durable = self._durable._replace(store_id=new_store_id())
        self._file.write(self._durable)

    def adopt(self) -> None:
        """Make an opened store that of a replica, if it is not; on any thread.

        Raises:
            OSError: the file cannot be written.
        """
        if self._durable is None:
            end = self._store.commit_log.end
            self._durable = Durable(new_store_id(), confirmed=end)
            self._file.write(self._durable)
            self._store.replica.show_below(end)

    async def start(
        self,
        host: str,
        group_host: str,
        client_port: int,
        supervisor: Supervisor,
        listen_as_leader: Callable[[], Awaitable[int]],
    ) -> None:
        """Listen for other replicas and begin to take part.

        Args:
            host: where to listen.
            group_host: of the group, where clients find whoever leads.
            client_port: where clients find this replica.
            supervisor: of the tasks.
            listen_as_leader: opens the port of whoever leads and returns it; asked once.

        Raises:
            OSError: the address cannot be listened on, or `brokerIP2` does not resolve.
        """
        assert self._durable is not None
        port = self._settings.store.ha_listen_port
        port = client_port + 1 if port < 0 else port
        await self.peers.listen(host, port, self._secret_now, self.java_slaves.make)
        own_ip = replicas_ip(self._settings.broker)
        self._address = format_host(encode_host(own_ip, self.peers.port))
        self._leaders_address = f"{group_host}:{client_port}"
        self._client_address = self._leaders_address
        if self._leases is not None:
            # The other one is the group's, behind which whoever leads is found.
            self._client_address = format_host(encode_host(own_ip, client_port))
        self.group.begin(self._durable, self.peers, self._leases)
        self._is_begun = True
        self._waiting = asyncio.get_running_loop().call_later(_LINKED_WITHIN_S, self._wait_no_more)
        supervisor.start("replication", self.group.run)
        if self._settings.store.broker_role == "SLAVE":
            supervisor.start("master of RocketMQ", self.java_master.run)
            supervisor.start("tables of the master of RocketMQ", self.java_tables.run)
        if self._kube is not None:
            self._endpoints = self._make_endpoints(self._kube, own_ip, listen_as_leader)
            supervisor.start("endpoints of the leader", self._endpoints.keep)
            supervisor.start("leader whose disk fails", self._leave_failed_log)
        supervisor.start("tables of replicas", self.tables.keep)
        supervisor.start("repair of the log", self.group.repair.run)
        _log.info("replica address=%s", self._address)

    async def led_alone(self) -> None:
        """Wait until this replica takes messages, if it needs no other replica for that.

        Clients send to a single master as soon as it says that it is ready. The wait ends early
        when another replica leads or a person has to decide, and after 5 s in any case.
        """
        group, by_hand = self.group, self.group.by_hand
        if by_hand is None or not by_hand.begins or by_hand.min_in_sync > 1:
            return
        if by_hand.replicas > 1 and group.has_seen_nobody:
            return  # A new group begins once all have answered.

        def is_decided() -> bool:
            stands_back = group.is_halted or group.replica.stopped or self.hears_master
            return bool(stands_back) or not group.refusal()

        await group.until(is_decided, _LEADS_WITHIN_S)

    def _wait_no_more(self) -> None:
        """Take the place of a new group's first replica, if nobody else was found."""
        self._has_waited = True
        self.group.on_view()

    async def leave(self) -> None:
        """Let another replica lead if one can, where a lease allows it; tell others of the end."""
        if not self._is_begun:
            return
        if self.group.by_hand is None and self.group.is_leading:
            leader, refusal = await hand_over(self.group, None)
            if refusal:
                _log.warning("nobody takes over from replica %d: %s", leader, refusal)
        self.group.leave()

    @property
    def was_replaced(self) -> bool:
        """Whether it has led, and its clients' address leads to another replica now, or will."""
        group = self.group
        return group.by_hand is None and group.has_led and not group.is_leading

    async def _leave_failed_log(self, progress: TaskProgress) -> None:
        """Let another replica lead once nothing more can be stored here; runs for ever.

        This broker starts anew then, as a slave.
        """
        while True:
            progress.beat(_GIVE_UP_WITHIN_S)
            await asyncio.sleep(_LOOK_AT_LOG_S)
            if self.group.is_leading and self._store.commit_log.failure is not None:
                _, refusal = await hand_over(self.group, None)
                if refusal and self.group.is_leading:
                    _log.error("the log cannot be written, and nobody takes over: %s", refusal)
                    await self.release(leaves=True)

    async def release(self, *, leaves: bool = False) -> None:
        """Give up the lease, if this replica still has it, once all that is stored is durable.

        With `leaves` it does not lead again before it has followed another one.
        """
        if self._is_begun:
            await self.group.release(_RELEASE_WITHIN_S, leaves=leaves)

    async def close(self) -> None:
        """Take part no more."""
        is_leader_still = self.group.by_hand is None and self.group.is_leading
        if self._waiting is not None:
            self._waiting.cancel()
        self.group.end()
        await self.group.close()
        self.java_slaves.close()
        await self.peers.close()
        await self.java_master.close()
        if is_leader_still:
            # The others see that nobody listens here while the address of the pod still answers,
            # and need not wait for the lease.
            await asyncio.sleep(_SEEN_DEAD_S)

    def note_master(self, ha_address: str, client_address: str) -> None:
        """Take note of whom a name server calls the master of the group."""
        if ha_address and ha_address != self._address and client_address != self._client_address:
            self.java_master.note_client_address(ha_address, client_address)
            self.peers.add_address(ha_address)

    def _silent(self, address: str) -> None:
        """Find out whether who takes connections and says nothing is a master of RocketMQ."""
        if self._settings.store.broker_role == "SLAVE":
            self.java_master.follow(address)
        else:
            self.peers.try_again(address)

    def _followed_java_master(self, end: int) -> None:
        self.group.followed(end)
        self.java_tables.written()

    def _refuses_java_master(self) -> str:
        """Say why a master of RocketMQ must not be followed, empty if it may."""
        replica = self.group.replica
        if replica.is_leading:
            return "this broker leads its group"
        if replica.durable.epochs:
            return (
                "the log here has been written by a master of ours, which no master of RocketMQ "
                "continues: to follow one, start with an empty store"
            )
        return ""

    def note_clean(self) -> None:
        """Note that the store was closed in order, after `close`; on any thread.

        Raises:
            OSError: it is not noted; after a restart of the machine a person may be asked for.
        """
        durable = self._file.durable
        if self._is_begun and durable is not None:
            # What the replica wants beyond that, as a cut before new epochs, was not done.
            confirmed = max(durable.confirmed, self._store.replica.confirmed_offset)
            is_clean = self._store.commit_log.failure is None  # Else its end was not flushed.
            self._file.write(durable._replace(is_clean=is_clean, confirmed=confirmed))

    async def import_store(self, root: str, flushed: Callable[[], Awaitable[None]]) -> Imported:
        """Take over what the store of a stopped broker has and this one has not.

        Args:
            root: the folder of that store.
            flushed: returns once everything that the log holds now is durable; raises OSError.

        Raises:
            ImportRefusedError: nothing, or not all of it, was taken over; the text says why.
            StoreError: that store is in use, or damaged.
            OSError: a file cannot be read or written.
        """
        if self.java_master.is_followed:
            raise ImportRefusedError("it follows a master of RocketMQ: stop that one first")
        if self._is_importing:
            raise ImportRefusedError("another store is being imported")
        self._is_importing = True
        try:
            work = StoreImport(
                RealDisk(is_read_only=True),
                root,
                self._settings.store.mapped_file_size_commit_log,
                self._managers,
                self.group,
            )
            return await work.run(flushed)
        finally:
            self._is_importing = False

    @property
    def is_begun(self) -> bool:
        """Whether it takes part."""
        return self._is_begun

    @property
    def address(self) -> str:
        """Where other replicas connect, "ip:port"."""
        return self._address

    @property
    def registered_address(self) -> str:
        """Where name servers are to say that clients find this replica now, "ip:port".

        Where a lease says who leads, whoever leads has brokerIP1, which is the same for all of the
        group, and all others brokerIP2.
        """
        return self._leaders_address if self.group.is_leading else self._client_address

    def report(self) -> ReplicaReport:
        """Say how this replica and its group are, after `start`."""
        end = self._store.replica.end
        return report(
            self._settings.broker.broker_name,
            self._client_address,
            self.group,
            self.peers,
            self._settings.store.total_replicas,
            "" if self._endpoints is None else self._endpoints.trouble,
            report_java_master(self.java_master, self.java_tables, end),
            report_java_slaves(self.java_slaves, end),
        )

    @property
    def hears_master(self) -> bool:
        """Whether a master, of ours or of RocketMQ, sends its log."""
        return self.group.is_following or self.java_master.is_followed

    def may_be_replica(self, client_address: str) -> bool:
        """Tell whether another replica of the group serves clients there, or may for all that is
        known a moment after the start."""
        is_new = self._disk.monotonic() < self._made_s + _LINKED_WITHIN_S
        return is_new or self.peers.has_client_address(client_address)

    def registered_id(self) -> int:
        """Return the brokerId under which name servers are to know this replica now, -1 for none.

        Whoever leads is 0; the replica whose own number that is takes the leader's meanwhile. In a
        new group it is 0 before it leads: slaves have to find it first. But where it was told who
        else there may be, it looks there first, as its volume may be an empty one in the place of
        another: name servers of RocketMQ 4.9 would lead clients to it at once.
        """
        ordinal = self._settings.broker.broker_id
        leader = self.group.leader
        is_by_hand = self.group.by_hand is not None
        is_new = not ordinal and self.group.has_seen_nobody and is_by_hand and self._has_waited
        if self.group.is_leading or is_new:
            return 0
        return ordinal or (leader.ordinal if leader is not None and leader.ordinal > 0 else -1)

    def _open(self) -> Open:
        group = self.group
        holder, epoch = group.view()
        me = group.replica.me
        return Open(
            "",
            f"{self._settings.broker.broker_cluster_name}/{self._settings.broker.broker_name}",
            me.ordinal,
            me.store_id,
            me.boot,
            self._address,
            self._client_address,
            dict(self._file.peers),
            self._settings.store.mapped_file_size_commit_log,
            self._settings.store.total_replicas,
            self._settings.store.in_sync_replicas,
            group.replica.durable.seen,
            holder.ordinal,
            holder.boot,
            holder.store_id,
            epoch,
        )


def _copy_rate(config: MessageStoreConfig) -> int:
    """Return how many bytes a second are copied at most, 0 for no bound."""
    return config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else 0


def _read_secret(path: str) -> bytes:
    if not path:
        return b""
    try:
        secret = read_file_of_others(path, _SECRET_MAX_BYTES).strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError("haSecretFile", path, f"cannot be read: {reason}") from error
    if not secret:
        raise ConfigError("haSecretFile", path, "is empty: write any long text into it")
    return secret
