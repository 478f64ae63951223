"""What a replica must not forget."""

from typing import NamedTuple

from mailboat.replication.epochs import Epochs


class Durable(NamedTuple):
    """Kept beside the log, written whole and synced.

    `seen` is the highest epoch the replica has led, or followed. Below `confirmed` nothing is ever
    cut by itself. `trusted_boot` names the run of the kernel since whose start no unflushed byte
    can have been lost, empty where all that counts was flushed; `is_clean` tells that the process
    ended in order, `is_whole` that the log had once all that was confirmed then. `group` names a
    group that is led by hand, from its first leader on: epochs say nothing of another group's log.
    """

    store_id: str
    seen: int = 0
    epochs: Epochs = ()
    confirmed: int = 0
    trusted_boot: str = ""
    is_clean: bool = False
    is_whole: bool = False
    group: str = ""
