"""The consumer groups that this broker knows, and how it treats them.

Saved in `config/subscriptionGroup.json`. A group that nobody configured is made with defaults on
its first heartbeat or pull when autoCreateSubscriptionGroup is on and there is room for it.

Source: apache/rocketmq broker/subscription/SubscriptionGroupManager.java @ rocketmq-all-5.3.3.
"""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mailboat.broker.journal import Journal
from mailboat.broker.state_saver import SavedTable, StateSaver
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.data_version import DataVersion
from mailboat.model.names import SYSTEM_GROUPS
from mailboat.model.stored_configs import check_group_config, check_group_name, fit_group_config
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.group_table import (
    SubscriptionGroupTable,
    decode_group_table,
    group_table_members,
)
from mailboat.protocol.json_slices import Member, compact_slices, pretty_slices
from mailboat.remoting.shares import Shares

_log = logging.getLogger(__name__)

MAX_GROUPS: Final = 100_000
"""Any client can make groups, which stay for good: half a kilobyte each, in memory and in the file.
"""


class SubscriptionGroupManager(SavedTable):
    """The table of consumer groups."""

    def __init__(self, disk: Disk, config_dir: str, *, auto_create: bool) -> None:
        """Start with the groups that every broker has; `load` adds those of the file."""
        self._disk = disk
        self._file = JsonFile(disk, f"{config_dir}/subscriptionGroup.json")
        self._saver = StateSaver(self._file, self._encode_file)
        self._auto_create = auto_create
        self.table = {group: SubscriptionGroupConfig(group) for group in SYSTEM_GROUPS}
        """Configurations by group name."""
        self.data_version = DataVersion(timestamp=disk.wall_ms())
        self.journal: Journal | None = None
        """Takes note of what changes, where other replicas are to know it."""

        self.is_followed = False
        """Whether the table is that of another replica: nothing is made here by itself."""

        self._made = Shares(MAX_GROUPS)
        self._makers: dict[str, str] = {}

    def load(self) -> None:
        """Read the file of an earlier run, if there is one.

        What nobody may ask for today is made to fit or left out, with a log line.

        Raises:
            DamagedStoreError: neither the file nor its previous version can be read.
        """
        loaded = self._file.load(decode_group_table)
        if loaded is None:
            self._saver.mark_changed()
            return
        for group, config in loaded.subscription_group_table.items():
            if self.take_fitted("group", group, fit_group_config(group, config), self._file.path):
                self.table[group] = config
        self.data_version = loaded.data_version

    def configure(self, *, auto_create: bool) -> None:
        """Make unknown groups from now on, or no longer."""
        self._auto_create = auto_create

    def find(self, group: str, maker: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration; an unknown group is made where that is allowed.

        `maker` is the address that asks: one has a quarter of the groups that are made so at most.
        """
        config = self.table.get(group)
        if config is not None or self.why_not_made(group, maker) is not None:
            return config
        config = SubscriptionGroupConfig(group)
        _log.info("consumer group created group=%s cause=first use by address=%s", group, maker)
        self._put(config)
        self._makers[group] = maker
        self._made.take(maker, 1)
        return config

    def why_not_made(self, group: str, maker: str) -> str | None:
        """Say why `find` would not make an unknown group, None where it would."""
        if not self._auto_create:
            return "autoCreateSubscriptionGroup is off"
        if self.is_followed:
            return "this replica does not lead"
        try:
            check_group_name(group)
            self.refuse_too_many([group])
        except IllegalMessageError as error:
            return str(error)
        except BrokerError as error:
            return error.remark
        excess = self._made.excess(maker, 1)
        return excess and f"clients have made so many groups that one more exceeds {excess}"

    def select(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration, None if there is none; never makes one."""
        return self.table.get(group)

    def update(self, config: SubscriptionGroupConfig) -> None:
        """Make or change a group.

        Raises:
            IllegalMessageError: the name is illegal, a number is out of its limits, or attributes
                are set, of which RocketMQ defines none.
            BrokerError: there are too many groups for another one.
        """
        check_group_config(config)
        self.refuse_too_many([config.group_name])
        _log.info("consumer group configured group=%s", config.group_name)
        self._put(config)

    def refuse_too_many(self, groups: Iterable[str]) -> None:
        """Refuse groups that would be too many with those that there are.

        Raises:
            BrokerError: SYSTEM_ERROR, they would.
        """
        new = sum(group not in self.table for group in groups)
        if new and len(self.table) + new > MAX_GROUPS:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"{new} more consumer groups cannot be made: this broker has {len(self.table)}, "
                f"the limit is {MAX_GROUPS}; delete groups that nobody uses",
            )

    def delete(self, group: str) -> bool:
        """Remove a group; return whether there was one."""
        if self.table.pop(group, None) is None:
            return False
        self._forget_maker(group)
        _log.info("consumer group deleted group=%s", group)
        self._changed(group)
        return True

    def follow(
        self, configs: Mapping[str, SubscriptionGroupConfig | None], version: DataVersion
    ) -> None:
        """Take over groups as the master has them, None for those that it has not."""
        for name, config in configs.items():
            if config is not None:
                if self.take_fitted("group", name, fit_group_config(name, config), "the master"):
                    self.table[name] = config
            else:
                self.table.pop(name, None)
                self._forget_maker(name)
        self.data_version = dataclasses.replace(version)
        self._saver.mark_changed()

    def _forget_maker(self, group: str) -> None:
        maker = self._makers.pop(group, None)
        if maker is not None:
            self._made.give(maker, 1)

    def encode(self) -> Iterator[bytes]:
        """Return the whole table as the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG, in slices."""
        return compact_slices(self._members())

    def _put(self, config: SubscriptionGroupConfig) -> None:
        is_new = config.group_name not in self.table
        self.table[config.group_name] = config
        if is_new and len(self.table) == MAX_GROUPS:
            _log.warning("there are %d consumer groups, no more are made", MAX_GROUPS)
        self._changed(config.group_name)

    def _changed(self, group: str) -> None:
        if self.journal is not None:
            self.journal.note(group)
        self.data_version.advance(self._disk.wall_ms())
        self._saver.mark_changed()

    def _members(self) -> Iterator[Member]:
        return group_table_members(SubscriptionGroupTable(self.data_version, self.table))

    def _encode_file(self) -> Iterator[bytes]:
        return pretty_slices(self._members())
