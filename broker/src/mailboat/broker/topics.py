"""The topics of this broker: their queues and permissions, and which it makes by itself.

Saved in `config/topics.json`. Every change moves the table's version on and tells the listeners,
which register the table at the name servers. All of it has to fit one registration: what would not
is refused, or the name servers would lose the whole broker.

Source: apache/rocketmq broker/topic/TopicConfigManager.java @ rocketmq-all-5.3.3.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from typing import Final

from mailboat.broker.journal import Journal
from mailboat.broker.state_saver import SavedTable, StateSaver
from mailboat.broker.topic_creation import TopicCreation
from mailboat.config import BrokerConfig
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile
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
    dlq_topic,
    is_retry_or_dlq,
    is_system_topic,
    retry_topic,
)
from mailboat.model.stored_configs import (
    MAX_QUEUE_NUMS,
    check_derived_topic,
    check_topic_config,
    fit_topic_config,
)
from mailboat.model.topic import Perm, TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.json_slices import Member, compact_slices, pretty_slices
from mailboat.protocol.register_broker import (
    MAX_REGISTERED_BYTES,
    MAX_TOPICS,
    is_registrable,
    registered_bytes,
)
from mailboat.protocol.topic_table import (
    TopicConfigTable,
    decode_topic_table,
    topic_table_members,
)
from mailboat.remoting.turns import in_turns

_log = logging.getLogger(__name__)

_READ_WRITE: Final = Perm.READ | Perm.WRITE
_BENCHMARK_QUEUES: Final = 1024
_DELAY_LEVELS: Final = 18
_REVIVE_QUEUES: Final = 8
_DELETIONS_KEPT: Final = 10_000
_MADE_A_ROUND: Final = 100


class TopicConfigManager(SavedTable):
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
        self._making: dict[str, TopicCreation] = {}
        self.going: set[str] = set()
        """Deleted topics whose queues are not all gone yet: nobody may make them anew."""

        self._makers: dict[asyncio.Task[None], list[TopicCreation]] = {}
        self._begun: list[TopicCreation] = []
        """What the maker of this round of the loop will make."""

        self._to_finish: deque[tuple[TopicCreation, str | None]] = deque()
        """What is durable, or is not made for a reason."""

        self._finisher: asyncio.Task[None] | None = None
        self._registered_bytes = sum(map(registered_bytes, self.table.values()))
        self._epoch = disk.wall_ms()
        self._deletions: dict[str, int] = {}
        self.unregistered = 0
        """How many topics the last registration had no room for."""

        self.on_change: list[Callable[[], None]] = []
        """Called after each change of the table."""

        self.journal: Journal | None = None
        """Takes note of what changes, where other replicas are to know it."""

        self.known_to_replicas: Callable[[], Awaitable[None]] | None = None
        """Returns once the other replicas know what has changed so far; raises BrokerError."""

        self.is_followed = False
        """Whether the table is that of another replica: nothing is made here by itself."""

    @property
    def system_topics(self) -> list[str]:
        """Names of the broker's own topics."""
        return sorted(self._system_names)

    def load(self) -> None:
        """Read the file of an earlier run, if there is one.

        What an earlier version or a careless hand put there and nobody may ask for today is left
        out or made to fit, with a log line.

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
        for name, topic_config in table.items():
            if self.take_fitted(
                "topic", name, fit_topic_config(name, topic_config), self._file.path
            ):
                self._put(topic_config)

    def configure(self, config: BrokerConfig) -> None:
        """Follow other settings: what TBW102 looks like, and what the broker allows."""
        self._config = config
        model = {topic.topic_name: topic for topic in _system_topics(config)}
        self._system_names = frozenset(model)
        self._drop(AUTO_CREATE_TOPIC)
        if AUTO_CREATE_TOPIC in model:
            self._put(model[AUTO_CREATE_TOPIC])
        self._changed()

    def stop_taking_messages(self) -> None:
        """Tell name servers from now on that no topic takes messages here; sends are still
        stored."""
        self._is_draining = True
        self._changed()

    def select(self, topic: str) -> TopicConfig | None:
        """Return a topic's configuration, None if there is none."""
        return self.table.get(topic)

    def readable_queues(self, topic: str) -> int:
        """Return how many queues of a topic have a route; of an unknown topic all may."""
        config = self.table.get(topic)
        return MAX_QUEUE_NUMS if config is None else config.read_queue_nums

    def incarnation(self, topic: str) -> str:
        """Return what tells a topic from one of its name that is made after it was deleted.

        It holds for this run: after a restart the same topic has another one.
        """
        return f"{self._epoch}-{self._deletions.get(topic, 0)}"

    def is_system(self, topic: str) -> bool:
        """Tell whether a topic is the broker's own, which nobody may change or delete."""
        return topic in self._system_names or is_system_topic(topic)

    def create_in_send(
        self, topic: str, default_topic: str, queue_nums: int, *, topic_sys_flag: int = 0
    ) -> TopicCreation | None:
        """Begin to make the topic that a message was sent to, after the model of `default_topic`.

        Returns None where the model does not allow it.

        Raises:
            BrokerError: there is no room for the topic in a registration.
        """
        if topic in self._making:
            return self._making[topic]
        model = self.table.get(default_topic)
        if model is None or not model.perm & Perm.INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        queues = max(1, min(queue_nums, model.write_queue_nums))
        return self._make(
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

        Raises:
            BrokerError: no topic can have that name, or there is no room for it in a registration.
        """
        name = retry_topic(group)
        known = self.table.get(name)
        if self.is_followed or (known is not None and known.order == order):
            return False
        if known is not None:
            known.order = order
            self._note(name)
        else:
            queues = min(max(queue_nums, 0), MAX_QUEUE_NUMS)
            config = TopicConfig(
                name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                topic_sys_flag=topic_sys_flag,
                order=order,
            )
            _refuse_unfit(config)
            self.refuse_too_many([config])
            self._put(config)
            _log.info("topic created topic=%s cause=heartbeat of its group", name)
        self._changed()
        return True

    def create_dlq_topic(self, group: str) -> TopicCreation | None:
        """Begin to make a group's dead-letter topic; None where it exists.

        Raises:
            BrokerError: there is no room for the topic in a registration.
        """
        return self._make_single_queue(dlq_topic(group))

    def create_check_max_time_topic(self) -> TopicCreation | None:
        """Begin to make the topic of half messages that were given up; None where it exists.

        Raises:
            BrokerError: there is no room for the topic in a registration.
        """
        return self._make_single_queue(CHECK_MAX_TIME_TOPIC)

    def _make_single_queue(self, name: str) -> TopicCreation | None:
        if name in self.table:
            return None
        return self._make(TopicConfig(name, read_queue_nums=1, write_queue_nums=1))

    async def make(self, configs: Sequence[TopicConfig]) -> None:
        """Make topics that an administrator asks for; on return they are durable and in the table.

        One that is being made gets this configuration, one that was made meanwhile is changed.

        Raises:
            BrokerError: SYSTEM_ERROR, there is no room for them in a registration;
                SERVICE_NOT_AVAILABLE, they could not be saved, and one at least is not made.
        """
        awaited: list[TopicCreation] = []
        for begin in range(0, len(configs), _MADE_A_ROUND):
            awaited += self._make_some(configs[begin : begin + _MADE_A_ROUND])
            await asyncio.sleep(0)
        for creation in awaited:
            await creation.wait()

    def _make_some(self, configs: Sequence[TopicConfig]) -> list[TopicCreation]:
        """Begin to make topics, or change them; return the creations to wait for."""
        self.refuse_too_many(configs)
        begun: list[TopicCreation] = []
        awaited: list[TopicCreation] = []
        for config in configs:
            name = config.topic_name
            if name in self.table:
                self.update(config)
                continue
            creation = self._making.get(name)
            if creation is None:
                creation = self._note_making(config, "an administrator")
                begun.append(creation)
            else:
                self._registered_bytes += registered_bytes(config)
                self._registered_bytes -= registered_bytes(creation.config)
                creation.config = config
                self._note(name)
                self._saver.mark_changed()
            awaited.append(creation)
        if begun:
            self._begin_making(begun)
        return awaited

    def update(self, config: TopicConfig) -> bool:
        """Make or change a topic at once; return whether that changed anything.

        Messages are taken for it before it is durable: for a new one that others use, see `make`.

        Raises:
            IllegalMessageError: something of it is not legal, or it is one of the broker's own.
            BrokerError: there is no room for the topic in a registration.
        """
        self.check(config)
        known = self.table.get(config.topic_name)
        if known == config:
            return False
        self.refuse_too_many([config])
        self._put(config)
        _log.info("topic %s: %s", "created" if known is None else "changed", config)
        self._changed()
        return True

    def mark_ordered(self, topics: Iterable[str]) -> None:
        """Take over from a name server which topics are ordered."""
        if self.is_followed:
            return
        changed = False
        for topic in topics:
            config = self.table.get(topic)
            if config is not None and not config.order:
                config.order = changed = True
                self._note(topic)
        if changed:
            self._changed()

    def delete(self, topic: str) -> bool:
        """Remove a topic's configuration; return whether there was one.

        Raises:
            IllegalMessageError: it is one of the broker's own.
        """
        self._refuse_system(topic)
        if not self._drop(topic):
            return False
        _log.info("topic deleted topic=%s", topic)
        if len(self._deletions) >= _DELETIONS_KEPT:
            self._deletions.clear()
            self._epoch += 1
        self._deletions[topic] = self._deletions.get(topic, 0) + 1
        self._changed()
        return True

    @property
    def registered_bytes(self) -> int:
        """How much room the topics take in a registration, compressed form before compression."""
        return self._registered_bytes

    def registered(self) -> Iterator[TopicConfig]:
        """Return the topics as name servers get them: none allows what the broker does not.

        Those of an old file or of another broker for which there is no room are left out, and
        counted in `unregistered`. The table may change meanwhile.
        """
        allowed = self._config.broker_permission
        if self._is_draining:
            allowed &= ~Perm.WRITE
        is_limited = allowed & _READ_WRITE != _READ_WRITE
        room_bytes, room, left_out = MAX_REGISTERED_BYTES, MAX_TOPICS, 0
        for config in list(self.table.values()):
            size_bytes = registered_bytes(config)
            if not is_registrable(config) or size_bytes > room_bytes or not room:
                left_out += 1
                continue
            room_bytes -= size_bytes
            room -= 1
            if is_limited or config.attributes:
                # Name servers do nothing with attributes, which may be long.
                perm = config.perm & allowed if is_limited else config.perm
                config = dataclasses.replace(config, perm=perm, attributes={})
            yield config
        if left_out > self.unregistered:
            _log.warning(
                "no client finds %d topics: a registration has room for %d topics and %d bytes, "
                "and for no name with a space; delete or rename topics",
                left_out,
                MAX_TOPICS,
                MAX_REGISTERED_BYTES,
            )
        self.unregistered = left_out

    def encode(self) -> Iterator[bytes]:
        """Return the whole table as the body of GET_ALL_TOPIC_CONFIG, in slices."""
        return compact_slices(self._members())

    def is_being_made(self, topic: str) -> bool:
        """Tell whether a topic that is not in the table yet is on its way to the disk."""
        return topic in self._making

    async def until_made(self, topic: str) -> None:
        """Wait until a topic that is being made is in the table, or is known not to be made."""
        while (creation := self._making.get(topic)) is not None:
            with contextlib.suppress(BrokerError):
                await creation.wait()

    async def settle(self, timeout_s: float) -> None:
        """Wait for the topics that are being made; after `timeout_s` they count as not made."""
        if not self._makers:
            return
        _, late = await asyncio.wait(self._makers, timeout=timeout_s)
        for task in late:
            if not any(creation.is_durable for creation in self._makers[task]):
                task.cancel()
        if late:
            await asyncio.wait(late)

    # -- making topics --------------------------------------------------------------------------

    def _make(self, config: TopicConfig) -> TopicCreation:
        """Return the creation of a topic that is not in the table, begun if need be."""
        creation = self._making.get(config.topic_name)
        if creation is None:
            _refuse_unfit(config)
            self.refuse_too_many([config])
            creation = self._note_making(config, "first message")
            self._begin_making([creation])
        return creation

    def _note_making(self, config: TopicConfig, cause: str) -> TopicCreation:
        """Have a topic in the next file, and in the table once that is written."""
        creation = self._making[config.topic_name] = TopicCreation(config, cause)
        self._note(config.topic_name)
        self._registered_bytes += registered_bytes(config)
        return creation

    def _begin_making(self, creations: list[TopicCreation]) -> None:
        self.data_version.advance(self._disk.wall_ms())
        self._saver.mark_changed()
        if not self._begun:
            self._begun = []
            maker = asyncio.get_running_loop().create_task(self._finish_all(self._begun))
            self._makers[maker] = self._begun
            maker.add_done_callback(self._makers.pop)
        self._begun += creations

    async def _finish_all(self, creations: list[TopicCreation]) -> None:
        """Make topics durable, have done what waits for them, and put them into the table."""
        self._begun = []
        reason = None
        try:
            await self._saver.save()
            if self.known_to_replicas is not None:
                await self.known_to_replicas()
        except OSError as error:
            reason = f"{self._file.path} cannot be saved ({error.strerror or error})"
        except BrokerError as error:
            reason = error.remark
        except asyncio.CancelledError:
            reason = f"the broker is stopping, and {self._file.path} is not written in time"
        except Exception as error:
            # The error ends here, as that of a request does: nobody may wait for ever.
            _log.exception("%s cannot be saved", self._file.path)
            reason = f"{self._file.path} cannot be saved ({type(error).__name__}: {error})"
        if reason is not None:
            self._saver.mark_changed()
        for creation in creations:
            creation.is_durable = reason is None
            self._to_finish.append((creation, reason))
        if self._finisher is None or self._finisher.done():
            # What many wait for is nobody's own: see `mailboat.remoting.turns`.
            self._finisher = asyncio.get_running_loop().create_task(
                in_turns(self._finish_some()), context=Context()
            )
        for creation in creations:
            with contextlib.suppress(BrokerError):
                await creation.wait()

    def _finish_some(self) -> Generator[None, None, None]:
        """Finish what is to be finished; each step is a part of what waits for one topic.

        Topics take turns: to one of them many messages may come for as long as others wait.
        """
        while self._to_finish:
            creation, reason = self._to_finish.popleft()
            if reason is None and not creation.proceed():
                self._to_finish.append((creation, reason))
            else:
                try:
                    self._finish(creation, reason)
                except Exception:
                    # A fault of ours with one topic: others wait for theirs.
                    _log.exception("topic %s is not finished", creation.config.topic_name)
                    creation.give_up()
            yield

    def _finish(self, creation: TopicCreation, reason: str | None) -> None:
        """Put a durable topic, for which nothing waits, into the table, or tell why not."""
        name = creation.config.topic_name
        del self._making[name]
        config = creation.config
        self._registered_bytes -= registered_bytes(config)
        if reason is not None:
            self._note(name)
            creation.end(
                BrokerError(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"service not available now: topic {name} was not made because {reason}",
                )
            )
            return
        if name not in self.table:
            self._put(config)
            self.data_version.advance(self._disk.wall_ms())
        _log.info("topic created topic=%s cause=%s: %s", name, creation.cause, config)
        creation.end(None)
        self._tell()

    def refuse_too_many(self, configs: Iterable[TopicConfig]) -> None:
        """Refuse topics that would not fit a registration with the others, or that are going.

        Raises:
            BrokerError: they do not, or their queues are being deleted.
        """
        new = more_bytes = 0
        for config in configs:
            if config.topic_name in self.going:
                raise BrokerError(
                    ResponseCode.SYSTEM_BUSY,
                    f"topic {config.topic_name} is being deleted, try again once it is",
                )
            known = self.find_shared(config.topic_name)
            new += known is None
            more_bytes += registered_bytes(config)
            more_bytes -= 0 if known is None else registered_bytes(known)
        count = len(self.table) + len(self._making)
        if new and count + new > MAX_TOPICS:
            limit = f"exceed the {MAX_TOPICS} topics"
        elif more_bytes > 0 and self._registered_bytes + more_bytes > MAX_REGISTERED_BYTES:
            limit = f"exceed the {MAX_REGISTERED_BYTES} bytes"
        else:
            return
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"topic {config.topic_name} cannot be made: this broker has {count} topics, and with "
            f"more of them its registration would {limit} that name servers take; delete topics, "
            "or use another broker",
        )

    def _put(self, config: TopicConfig) -> None:
        self._drop(config.topic_name)
        self.table[config.topic_name] = config
        self._registered_bytes += registered_bytes(config)
        self._note(config.topic_name)

    def _drop(self, topic: str) -> bool:
        known = self.table.pop(topic, None)
        if known is None:
            return False
        self._registered_bytes -= registered_bytes(known)
        self._note(topic)
        return True

    def _note(self, topic: str) -> None:
        if self.journal is not None:
            self.journal.note(topic)

    # -- replicas -------------------------------------------------------------------------------

    def shared(self) -> list[str]:
        """Return the topics that all replicas have; those of the configuration each has itself."""
        return [name for name in (*self.table, *self._making) if name not in self._system_names]

    def find_shared(self, topic: str) -> TopicConfig | None:
        """Return a topic as other replicas are to have it, None where they are to have none."""
        if topic in self._making:
            return self._making[topic].config
        return self.table.get(topic)

    def follow(self, configs: Mapping[str, TopicConfig | None], version: DataVersion) -> None:
        """Take over topics as the master has them, None for those that it has not."""
        for name, config in configs.items():
            if name in self._system_names:
                continue
            if config is not None:
                if self.take_fitted("topic", name, fit_topic_config(name, config), "the master"):
                    self._put(config)
            elif self._drop(name):
                _log.info("topic deleted topic=%s cause=its master", name)
        self.data_version = dataclasses.replace(version)
        self._saver.mark_changed()
        self._tell()

    def begin_to_lead(self, epoch: int) -> None:
        """Have the table from now on, under the version of an epoch."""
        self.is_followed = False
        self.data_version.state_version = epoch
        self._changed()

    def check(self, config: TopicConfig) -> None:
        """Refuse a configuration that `update` would refuse.

        Raises:
            IllegalMessageError: something of it is not legal, or it is one of the broker's own.
        """
        self._refuse_system(config.topic_name)
        check_topic_config(config, self.table.get(config.topic_name))

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

    def _members(self, *more: TopicConfig) -> Iterator[Member]:
        table = self.table
        if more:
            table = {config.topic_name: config for config in more} | table
        return topic_table_members(TopicConfigTable(self.data_version, table))

    def _encode_file(self) -> Iterator[bytes]:
        making = [creation.config for creation in self._making.values()]
        return pretty_slices(self._members(*making))


def _refuse_unfit(config: TopicConfig) -> None:
    """Raise BrokerError for a topic made here by itself that may not be stored."""
    try:
        if is_retry_or_dlq(config.topic_name):
            check_derived_topic(config)
        else:
            check_topic_config(config, None)
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error


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
