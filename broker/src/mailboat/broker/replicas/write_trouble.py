"""What a replica could not write of what it was sent, in words for whoever looks after it."""

import errno
from typing import Final

from mailboat.disk.descriptors import reason_of
from mailboat.replication import actions

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_OF_LOG: Final = (actions.WriteLog, actions.CutLog)


class WriteTrouble:
    """One sentence for each kind of action that failed and was not done since."""

    def __init__(self, root: str) -> None:
        """Speak of a store below the folder `root`."""
        self._root = root
        self._sentences: dict[type[actions.Action], str] = {}

    @property
    def sentence(self) -> str:
        """What is wrong and what to do; empty if nothing is."""
        return next(iter(self._sentences.values()), "")

    def note(self, kind: type[actions.Action], what: str, error: OSError | ValueError) -> str:
        """Take note of what failed; return the sentence."""
        if not isinstance(error, OSError):
            text = f"{what}: {error}; its master is asked for it again"
        elif error.errno in _FULL:
            reason = reason_of(error)
            text = f"{what}: {reason}; make room on the volume of {self._root}, and it goes on"
        else:
            text = f"{what}: {reason_of(error)}; look after the disk, it is tried again"
        self._sentences[kind] = text
        return text

    def is_over(self, kind: type[actions.Action]) -> None:
        """Take note that such an action was done."""
        if self._sentences:
            self._sentences.pop(kind, None)

    def log_is_whole(self) -> None:
        """Take note that nothing of the log is missing any more."""
        for kind in _OF_LOG:
            self.is_over(kind)

    def forget(self) -> None:
        """Speak of nothing that was before."""
        self._sentences.clear()
