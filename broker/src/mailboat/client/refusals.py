"""Refusals that depend on who asks: told once a minute, and not met with the next try at once.

Servers with ACL 2.0, and ours, answer NO_PERMISSION, which also stands for what nobody may do now
(a topic without the permission to read): only the remark tells. ACL 1.0 answers SYSTEM_ERROR with
the name of an exception.

Source: apache/rocketmq acl/common/AclException.java @ rocketmq-all-4.9.8,
auth/pipeline and broker/processor/*.java @ rocketmq-all-5.3.3
"""

import logging
import re
import time
from collections.abc import Callable
from typing import Final

from mailboat.errors import BrokerError, MailboatError
from mailboat.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

REFUSED_PAUSE_S: Final = 10.0
"""How soon what was refused is tried again: somebody has to grant a right first."""

TELL_INTERVAL_S: Final = 60.0
_MOST_SUBJECTS: Final = 1024
_ACL_1: Final = "AclException"
# Remarks of NO_PERMISSION that are about the topic, the group or the setting.
_FOR_EVERYBODY: Final = re.compile(
    r"forbidden|subscription group no permission|can not consume by broadcast"
    r"|cannot be changed|not allowed to set mode"
)


def is_denied(error: BaseException) -> bool:
    """Tell whether a server refused because of who asks, or because nobody said who asks."""
    if not isinstance(error, BrokerError):
        return False
    if error.code == ResponseCode.NO_PERMISSION:
        return _FOR_EVERYBODY.search(error.remark) is None
    return error.code == ResponseCode.SYSTEM_ERROR and _ACL_1 in error.remark


def pause_s(error: MailboatError, usual_s: float) -> float:
    """Return how long to wait before the next try after a failure."""
    return REFUSED_PAUSE_S if is_denied(error) else usual_s


class Refusals:
    """What one client was refused, so that its log says so once a minute for each subject."""

    __slots__ = ("_clock", "_told")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without refusals; `clock` gives seconds."""
        self._clock = clock
        # When each subject was told of last, and how many times it was refused since.
        self._told: dict[str, tuple[float, int]] = {}

    def tell(self, subject: str, error: MailboatError) -> bool:
        """Log a refusal if it is time to; return False for an error that is none."""
        if not is_denied(error):
            return False
        now_s = self._clock()
        told_s, times = self._told.get(subject, (-TELL_INTERVAL_S, 0))
        if now_s - told_s < TELL_INTERVAL_S:
            self._told[subject] = (told_s, times + 1)
            return True
        if len(self._told) >= _MOST_SUBJECTS:
            self._told.clear()
        self._told[subject] = (now_s, 0)
        before = f", {times} times more in between" if times else ""
        logger.warning("refused, tried again later%s %s: %s", before, subject, error)
        return True
