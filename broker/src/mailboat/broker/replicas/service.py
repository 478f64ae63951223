"""Replication of one broker: its file, its links, its group, from the start to the end."""

import logging
import uuid
from pathlib import Path
from typing import Final

from mailboat.broker.addresses import replicas_ip
from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.broker.replicas.java_master import JavaMaster
from mailboat.broker.replicas.java_slave import JavaSlaves
from mailboat.broker.replicas.peers import Peers
from mailboat.broker.replicas.replica_file import ReplicaFile, new_store_id
from mailboat.broker.replicas.report import ReplicaReport, report
from mailboat.broker.replicas.shared_tables import Managers, SharedTables
from mailboat.broker.supervisor import Supervisor
from mailboat.config import Settings
from mailboat.disk import Disk
from mailboat.errors import ConfigError
from mailboat.model.hosts import encode_host, format_host
from mailboat.replication import state
from mailboat.replication.durable import Durable
from mailboat.replication.wire import Open
from mailboat.store.message_inner import Runners
from mailboat.store.message_store import MessageStore
from mailboat.store.moving_aside import move_aside

_log: Final = logging.getLogger(__name__)


def is_replica(settings: Settings) -> bool:
    """Tell whether a broker is one of several replicas, or lets others follow it."""
    config = settings.store
    return config.broker_role != "ASYNC_MASTER" or config.ha_listen_port >= 0


class ReplicaService:
    """What a broker that is a replica has beside all others."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        disk: Disk,
        runners: Runners,
        managers: Managers,
    ) -> None:
        """Describe it; `load` comes before the store is opened, `start` afterwards."""
        self._settings = settings
        self._store = store
        self._disk = disk
        self._file = ReplicaFile(disk, store.paths.replica)
        self._durable: Durable | None = None
        self._is_begun = False
        self._secret = b""
        self._address = self._client_address = ""
        timeout_s = settings.store.slave_timeout / 1000
        self.tables = SharedTables(managers, disk, store.paths.own, timeout_s)
        self.group = ReplicaGroup(
            self._state_settings(), store, disk, runners, self._file, self.tables
        )
        self.peers = Peers(
            self.group,
            self._open,
            filter(None, settings.store.ha_master_address.split(";")),
            self._file.peers,
            settings.store.total_replicas,
        )
        self.java_slaves = JavaSlaves(
            store.replica,
            settings.store.mapped_file_size_commit_log,
            runners.reads,
            lambda: self.group.is_leading,
        )
        self.java_master = JavaMaster(
            store,
            settings.store.mapped_file_size_commit_log,
            self._refuses_java_master,
            self.group.followed,
            self.peers.try_again,
        )
        self.group.on_silent = self._silent

    def _state_settings(self) -> state.Settings:
        config = self._settings.store
        role = config.broker_role
        is_sync = role == "SYNC_MASTER" or (role == "SLAVE" and config.in_sync_replicas > 1)
        return state.Settings(
            self._settings.broker.broker_id,
            boot=uuid.uuid4().hex,
            kernel_boot=self._disk.boot_id(),
            is_sync_master=is_sync,
            is_sync_flush=config.flush_disk_type == "SYNC_FLUSH",
            by_hand=state.ByHand(
                config.total_replicas,
                config.in_sync_replicas if is_sync else 1,
                begins=role != "SLAVE",
            ),
        )

    def load(self) -> None:
        """Read what must not be forgotten, and hold back what is not confirmed; on any thread.

        Raises:
            ConfigError: the file with the secret cannot be read, or is empty.
            DamagedStoreError: the file cannot be understood.
            OSError: it cannot be read, or a log that is to go cannot be moved aside.
        """
        self._secret = _read_secret(self._settings.store.ha_secret_file)
        self._durable = self._file.read()
        if self._durable is not None and self._file.begins_anew:
            move_aside(self._disk, self._store.paths)
            self._file.begins_anew = False
            self._durable = Durable(new_store_id())
            self._file.write(self._durable)
        self.tables.load()
        if self._durable is not None:
            self._store.replica.show_below(self._durable.confirmed)

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

    async def start(self, host: str, ip: str, client_port: int, supervisor: Supervisor) -> None:
        """Listen for other replicas and begin to take part.

        Raises:
            OSError: the address cannot be listened on, or `brokerIP2` does not resolve.
        """
        assert self._durable is not None
        port = self._settings.store.ha_listen_port
        port = client_port + 1 if port < 0 else port
        await self.peers.listen(host, port, self._secret, self.java_slaves.make)
        own_ip = replicas_ip(self._settings.broker)
        self._address = format_host(encode_host(own_ip, self.peers.port))
        self._client_address = format_host(encode_host(ip, client_port))
        self.group.begin(self._durable, self.peers)
        self._is_begun = True
        supervisor.start("replication", self.group.run)
        if self._settings.store.broker_role == "SLAVE":
            supervisor.start("master of RocketMQ", self.java_master.run)
        supervisor.start("tables of replicas", self.tables.keep)
        _log.info("replica address=%s", self._address)

    async def close(self) -> None:
        """Take part no more."""
        self.group.end()
        self.java_slaves.close()
        await self.peers.close()
        await self.java_master.close()

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
        if self._is_begun:
            replica = self.group.replica
            self._file.write(replica.durable._replace(is_clean=True, confirmed=replica.confirmed))

    @property
    def is_begun(self) -> bool:
        """Whether it takes part."""
        return self._is_begun

    @property
    def address(self) -> str:
        """Where other replicas connect, "ip:port"."""
        return self._address

    def report(self) -> ReplicaReport:
        """Say how this replica and its group are, after `start`."""
        return report(self._settings.broker.broker_name, self.group, self.peers)

    def registered_id(self) -> int:
        """Return the brokerId under which name servers are to know this replica now, -1 for none.

        Whoever leads is 0; the replica whose own number that is takes the leader's meanwhile. In a
        new group it is 0 before it leads: slaves have to find it first.
        """
        ordinal = self._settings.broker.broker_id
        leader = self.group.leader
        is_new = not ordinal and self.group.has_seen_nobody
        if self.group.is_leading or is_new:
            return 0
        return ordinal or (leader.ordinal if leader is not None and leader.ordinal > 0 else -1)

    def _open(self) -> Open:
        group = self.group
        holder, epoch = group.view()
        me = group.replica.me
        return Open(
            "",
            self._settings.broker.broker_name,
            me.ordinal,
            me.store_id,
            me.boot,
            self._address,
            self._client_address,
            dict(self._file.peers),
            self._settings.store.mapped_file_size_commit_log,
            group.replica.durable.seen,
            holder.ordinal,
            holder.boot,
            holder.store_id,
            epoch,
        )


def _read_secret(path: str) -> bytes:
    if not path:
        return b""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError("haSecretFile", path, f"cannot be read: {error.strerror}") from error
    if not secret:
        raise ConfigError("haSecretFile", path, "is empty: write any long text into it")
    return secret
