"""Where the files of a store lie.

    <root>/commitlog/<20 digits>                     segments, named by their first physical offset
    <root>/consumequeue/<topic>/<queue>/<20 digits>  named by their first byte in the queue's file
    <root>/index/<yyyyMMddHHmmssSSS>                 named by creation time
    <root>/checkpoint, abort, lock                   as RocketMQ has them; abort has the process id
                                                     and, where a broker of ours wrote it, a blank
                                                     and the name of the kernel's run (boot_id)
    <root>/config/*.json                             the broker's tables
    <root>/mailboat/identity.json                    ours: which broker the directory belongs to
    <root>/mailboat/queueLocks.json                  ours: who consumes which queue in order
    <root>/mailboat/progress.json                    ours: how far the derived files are durable
    <root>/mailboat/flushed                          ours: how far the CommitLog is durable
    <root>/mailboat/deletedTopics.json               ours: records that belong to nobody any more
    <root>/mailboat/quarantine/                      ours: copies of damaged bytes
    <root>/mailboat/madeByUsers.json                 ours: which topics and groups users have made
    <root>/mailboat/users.json                       ours: users and rules that requests made
    <root>/mailboat/replica.json                     ours: what a replica must not forget
    <root>/mailboat/diverged/                        ours: what a replica had and its master has not

Source: apache/rocketmq store/config/StorePathConfigHelper.java.
"""

from dataclasses import dataclass
from typing import Final

from mailboat.disk import Disk

_NAME_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Paths of one store directory."""

    root: str
    commit_log: str

    @property
    def consume_queue(self) -> str:
        """Directory of the ConsumeQueues."""
        return f"{self.root}/consumequeue"

    @property
    def index(self) -> str:
        """Directory of the IndexFiles."""
        return f"{self.root}/index"

    @property
    def config(self) -> str:
        """Directory of the broker's JSON tables."""
        return f"{self.root}/config"

    @property
    def folders(self) -> tuple[str, ...]:
        """Directories that a store has from its first start on."""
        return self.root, self.commit_log, self.consume_queue, self.config, self.own

    @property
    def checkpoint(self) -> str:
        """RocketMQ's checkpoint file."""
        return f"{self.root}/checkpoint"

    @property
    def abort(self) -> str:
        """Present while a broker runs, and after it died."""
        return f"{self.root}/abort"

    @property
    def lock(self) -> str:
        """Held by the running broker."""
        return f"{self.root}/lock"

    @property
    def own(self) -> str:
        """Directory of the files that only mailboat has."""
        return f"{self.root}/mailboat"

    @property
    def identity(self) -> str:
        """Whose store it is."""
        return f"{self.own}/identity.json"

    @property
    def progress(self) -> str:
        """How far the derived files are durable."""
        return f"{self.own}/progress.json"

    @property
    def flushed(self) -> str:
        """How far the CommitLog is durable."""
        return f"{self.own}/flushed"

    @property
    def deleted_topics(self) -> str:
        """Where the CommitLog ended when topics were deleted."""
        return f"{self.own}/deletedTopics.json"

    @property
    def diverged(self) -> str:
        """Folder of what was cut off the log because the master does not have it."""
        return f"{self.own}/diverged"

    @property
    def replica(self) -> str:
        """What a replica must not forget."""
        return f"{self.own}/replica.json"

    @property
    def users(self) -> str:
        """Users and rules that requests made; nobody else can read it."""
        return f"{self.own}/users.json"

    @property
    def quarantine(self) -> str:
        """Copies of damaged bytes."""
        return f"{self.own}/quarantine"


def store_paths(root: str, commit_log: str | None = None) -> StorePaths:
    """Return the paths below `root`; `commit_log` moves the CommitLog elsewhere."""
    root = root.rstrip("/")
    return StorePaths(root, (commit_log or f"{root}/commitlog").rstrip("/"))


def segment_name(start: int) -> str:
    """Return the 20-digit file name for a first byte."""
    return f"{start:0{_NAME_DIGITS}d}"


def numbered_files(disk: Disk, directory: str) -> list[str]:
    """Return the names of the files in a folder that are named by their first byte, in order.

    Raises:
        OSError: the folder cannot be read.
    """
    return [
        name
        for name in disk.listdir(directory)
        if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()
        if not disk.is_dir(f"{directory}/{name}")
    ]
