"""Replication of one broker: its file, its links, its group, from the start to the end."""

import logging
import uuid
from typing import Final

from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.broker.replicas.peers import Peers
from mailboat.broker.replicas.replica_file import ReplicaFile, new_store_id
from mailboat.broker.replicas.shared_tables import Managers, SharedTables
from mailboat.broker.supervisor import Supervisor
from mailboat.config import Settings
from mailboat.disk import Disk
from mailboat.model.hosts import encode_host, format_host
from mailboat.replication import state
from mailboat.replication.durable import Durable
from mailboat.replication.wire import Open
from mailboat.store.message_inner import Runners
from mailboat.store.message_store import MessageStore

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
        )

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
            DamagedStoreError: the file cannot be understood.
            OSError: it cannot be read.
        """
        self._durable = self._file.read()
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
            OSError: the address cannot be listened on.
        """
        assert self._durable is not None
        port = self._settings.store.ha_listen_port
        await self.peers.listen(host, client_port + 1 if port < 0 else port)
        self._address = format_host(encode_host(ip, self.peers.port))
        self._client_address = format_host(encode_host(ip, client_port))
        self.group.begin(self._durable, self.peers)
        self._is_begun = True
        supervisor.start("replication", self.group.run)
        supervisor.start("tables of replicas", self.tables.keep)
        _log.info("replica address=%s", self._address)

    async def close(self) -> None:
        """Take part no more."""
        self.group.end()
        await self.peers.close()

    def note_clean(self) -> None:
        """Note that the store was closed in order, after `close`; on any thread.

        Raises:
            OSError: it is not noted; after a restart of the machine a person may be asked for.
        """
        if self._is_begun:
            replica = self.group.replica
            self._file.write(replica.durable._replace(is_clean=True, confirmed=replica.confirmed))

    @property
    def address(self) -> str:
        """Where other replicas connect, "ip:port"."""
        return self._address

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
