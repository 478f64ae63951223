"""The topics of this broker: their queues and permissions, and which it makes by itself.

Saved in `config/topics.json`. Every change moves the table's version on and tells the listeners,
which register the table at the name servers.

Source: apache/rocketmq broker/topic/TopicConfigManager.java @ rocketmq-all-5.3.3.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Final

from mailboat.broker.state_saver import StateSaver
from mailboat.config import BrokerConfig
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile, to_pretty_json
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.data_version import DataVersion
from mailboat.model.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    check_topic,
    dlq_topic,
    is_system_topic,
    retry_topic,
)
from mailboat.model.topic import Perm, TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.topic_table import (
    TopicConfigTable,
    decode_topic_table,
    encode_topic_table,
)

_log = logging.getLogger(__name__)

_READ_WRITE: Final = Perm.READ | Perm.WRITE
_BENCHMARK_QUEUES: Final = 1024
_DELAY_LEVELS: Final = 18
_REVIVE_QUEUES: Final = 8
MAX_QUEUE_NUMS: Final = 10_000
"""Most queues of one topic here; RocketMQ sets no limit, and its clients list every queue."""


class TopicConfigManager:
    """The table of topics."""

    def __init__(self, config: BrokerConfig, disk: Disk, config_dir: str) -> None:
        """Start with the topics that every broker has; `load` adds those of the file."""
        self._config = config
        self._disk = disk
        self._file = JsonFile(disk, f"{config_dir}/topics.json")
        self._saver = StateSaver(self._file, self._encode_file)
        self.table = {topic.topic_name: topic for topic in _system_topics(config)}
        """Configurations by topic name."""
        self._system_names = frozenset(self.table)
        self.data_version = DataVersion(timestamp=disk.wall_ms())
        self._is_draining = False
        self.on_change: list[Callable[[], None]] = []
        """Called after each change of the table."""

    @property
    def system_topics(self) -> list[str]:
        """Names of the broker's own topics."""
        return sorted(self._system_names)

    def load(self) -> None:
        """Read the file of an earlier run, if there is one.

        Raises:
            DamagedStoreError: neither the file nor its previous version can be read.
        """
        loaded = self._file.load(decode_topic_table)
        if loaded is None:
            self._saver.mark_changed()
            return
        self.data_version = loaded.data_version
        table = loaded.topic_config_table
        # What these look like, and whether there is a TBW102 at all, is the configuration's word;
        # RocketMQ keeps what the file says and so ignores a changed setting.
        for topic in (
            AUTO_CREATE_TOPIC,
            self._config.broker_cluster_name,
            self._config.broker_name,
        ):
            table.pop(topic, None)
        self.table.update(table)

    def configure(self, config: BrokerConfig) -> None:
        """Follow other settings: what TBW102 looks like, and what the broker allows."""
        self._config = config
        model = {topic.topic_name: topic for topic in _system_topics(config)}
        self._system_names = frozenset(model)
        self.table.pop(AUTO_CREATE_TOPIC, None)
        if AUTO_CREATE_TOPIC in model:
            self.table[AUTO_CREATE_TOPIC] = model[AUTO_CREATE_TOPIC]
        self._changed()

    def stop_taking_messages(self) -> None:
        """Tell name servers from now on that no topic takes messages here; sends are still
        stored."""
        self._is_draining = True
        self._changed()

    def select(self, topic: str) -> TopicConfig | None:
        """Return a topic's configuration, None if there is none."""
        return self.table.get(topic)

    def is_system(self, topic: str) -> bool:
        """Tell whether a topic is the broker's own, which nobody may change or delete."""
        return topic in self._system_names or is_system_topic(topic)

    def create_in_send(
        self, topic: str, default_topic: str, queue_nums: int, *, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """Make the topic that a message was sent to, after the model of `default_topic`.

        The topic is durable on return: a message acknowledged next must be found after a crash.
        Returns None where the model does not allow it.

        Raises:
            BrokerError: the topic cannot be saved; it was not made.
        """
        known = self.table.get(topic)
        if known is not None:
            return known
        model = self.table.get(default_topic)
        if model is None or not model.perm & Perm.INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        queues = max(1, min(queue_nums, model.write_queue_nums))
        return self._create_durable(
            TopicConfig(
                topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=model.perm & ~Perm.INHERIT,
                topic_filter_type=model.topic_filter_type,
                topic_sys_flag=topic_sys_flag,
            )
        )

    def create_retry_topic(
        self, group: str, *, queue_nums: int = 1, order: bool = False, topic_sys_flag: int = 0
    ) -> bool:
        """Make a group's retry topic unless it exists; return whether the table changed.

        Not durable on return: the group's next heartbeat would make it again.
        """
        name = retry_topic(group)
        known = self.table.get(name)
        if known is not None and known.order == order:
            return False
        if known is not None:
            known.order = order
        else:
            self.table[name] = TopicConfig(
                name,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                topic_sys_flag=topic_sys_flag,
                order=order,
            )
            _log.info("topic created topic=%s cause=heartbeat of its group", name)
        self._changed()
        return True

    def create_dlq_topic(self, group: str) -> TopicConfig:
        """Return a group's dead-letter topic, made and durable if it did not exist.

        Raises:
            BrokerError: the topic cannot be saved; it was not made.
        """
        name = dlq_topic(group)
        known = self.table.get(name)
        if known is not None:
            return known
        return self._create_durable(TopicConfig(name, read_queue_nums=1, write_queue_nums=1))

    def create_check_max_time_topic(self) -> TopicConfig:
        """Return the topic of half messages that were given up, made and durable if need be.

        Raises:
            BrokerError: the topic cannot be saved; it was not made.
        """
        known = self.table.get(CHECK_MAX_TIME_TOPIC)
        if known is not None:
            return known
        return self._create_durable(
            TopicConfig(CHECK_MAX_TIME_TOPIC, read_queue_nums=1, write_queue_nums=1)
        )

    def update(self, config: TopicConfig) -> bool:
        """Make or change a topic; return whether that changed anything.

        Raises:
            IllegalMessageError: the name, the queues or the permission are not legal.
        """
        self.check(config)
        known = self.table.get(config.topic_name)
        if known == config:
            return False
        self.table[config.topic_name] = config
        _log.info("topic %s: %s", "created" if known is None else "changed", config)
        self._changed()
        return True

    def mark_ordered(self, topics: Iterable[str]) -> None:
        """Take over from a name server which topics are ordered."""
        changed = False
        for topic in topics:
            config = self.table.get(topic)
            if config is not None and not config.order:
                config.order = changed = True
        if changed:
            self._changed()

    def delete(self, topic: str) -> bool:
        """Remove a topic's configuration; return whether there was one.

        Raises:
            IllegalMessageError: it is one of the broker's own.
        """
        self._refuse_system(topic)
        if self.table.pop(topic, None) is None:
            return False
        _log.info("topic deleted topic=%s", topic)
        self._changed()
        return True

    def registered_table(self) -> dict[str, TopicConfig]:
        """Return the table as name servers get it: no topic allows what the broker does not."""
        allowed = self._config.broker_permission
        if self._is_draining:
            allowed &= ~Perm.WRITE
        if allowed & _READ_WRITE == _READ_WRITE:
            return self.table
        return {
            name: dataclasses.replace(config, perm=config.perm & allowed)
            for name, config in self.table.items()
        }

    def encode(self) -> bytes:
        """Return the whole table as the body of GET_ALL_TOPIC_CONFIG."""
        return encode_topic_table(TopicConfigTable(self.data_version, self.table))

    async def persist(self) -> None:
        """Make the table durable; does nothing while it is unchanged.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        await self._saver.save()

    def persist_blocking(self) -> None:
        """Make the table durable on this thread.

        Raises:
            OSError: the disk refused.
        """
        self._saver.save_blocking()

    def _create_durable(self, config: TopicConfig) -> TopicConfig:
        name = config.topic_name
        self.table[name] = config
        self.data_version.advance(self._disk.wall_ms())
        self._saver.mark_changed()
        try:
            self._saver.save_blocking()
        except OSError as error:
            del self.table[name]
            self._saver.mark_changed()
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"service not available now: topic {name} was not made because "
                f"{self._file.path} cannot be saved ({error.strerror or error})",
            ) from error
        _log.info("topic created topic=%s cause=first message: %s", name, config)
        self._tell()
        return config

    def check(self, config: TopicConfig) -> None:
        """Refuse a configuration that `update` would refuse.

        Raises:
            IllegalMessageError: the name, the queues or the permission are not legal.
        """
        check_topic(config.topic_name)
        self._refuse_system(config.topic_name)
        for kind, count in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
            if not 0 <= count <= MAX_QUEUE_NUMS:
                raise IllegalMessageError(
                    f"topic {config.topic_name} cannot have {count} {kind} queues; "
                    f"0 to {MAX_QUEUE_NUMS} are allowed"
                )
        if not 0 <= config.perm < Perm.PRIORITY:
            raise IllegalMessageError(
                f"topic {config.topic_name} cannot have permission {config.perm}; "
                "use 2 (write), 4 (read) or 6 (both)"
            )

    def _refuse_system(self, topic: str) -> None:
        if self.is_system(topic):
            raise IllegalMessageError(f"topic {topic} is the broker's own and cannot be changed")

    def _changed(self) -> None:
        self.data_version.advance(self._disk.wall_ms())
        self._saver.mark_changed()
        self._tell()

    def _tell(self) -> None:
        for listener in self.on_change:
            listener()

    def _encode_file(self) -> bytes:
        return to_pretty_json(self.encode())


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the topics of a new broker, with RocketMQ's queue counts and permissions."""
    cluster, broker = config.broker_cluster_name, config.broker_name
    cluster_perm = _READ_WRITE if config.cluster_topic_enable else 0
    broker_perm = _READ_WRITE if config.broker_topic_enable else 0
    topics = [
        _topic(SELF_TEST_TOPIC, 1),
        _topic(BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
        _topic(cluster, 16, Perm.INHERIT | cluster_perm),
        _topic(broker, 1, Perm.INHERIT | broker_perm),
        _topic(OFFSET_MOVED_TOPIC, 1),
        _topic(SCHEDULE_TOPIC, _DELAY_LEVELS),
        _topic(f"{cluster}_REPLY_TOPIC", 1),
        _topic(f"{SYSTEM_PREFIX}REVIVE_LOG_{cluster}", _REVIVE_QUEUES),
        _topic(f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, Perm.INHERIT),
        _topic(HALF_TOPIC, 1),
        _topic(OP_HALF_TOPIC, 1),
        _topic(f"{SYSTEM_PREFIX}wheel_timer", 1),
    ]
    if config.auto_create_topic_enable:
        queues = config.default_topic_queue_nums
        topics.append(_topic(AUTO_CREATE_TOPIC, queues, Perm.INHERIT | _READ_WRITE))
    if config.trace_topic_enable:
        topics.append(_topic(config.msg_trace_topic_name, 1))
    return topics


def _topic(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
