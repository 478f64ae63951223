"""Comparing a replica with the master of RocketMQ whose log it follows, as clients see both.

The logs are equal byte by byte, which is checked while they are followed. What clients see is made
of them on either side: the settings that have to be equal, and which offsets each queue has (202).
Both brokers go on storing messages meanwhile: an offset here is right if it lies between what the
master said before and afterwards.
"""

import asyncio
from typing import Final, NamedTuple

from mailboat.cli.client_command import each
from mailboat.client.broker_calls import call
from mailboat.errors import BrokerError
from mailboat.protocol.bodies import decode_kv_table, decode_properties_text
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.followed_tables import read_delay_offsets, read_now, read_offsets
from mailboat.protocol.stats_bodies import TopicOffset, decode_topic_stats
from mailboat.protocol.topic_table import decode_topic_table
from mailboat.remoting.client import RemotingClient

_TIMEOUT_S: Final = 10.0
_MOST_DIGITS: Final = 19
_EQUAL_KEYS: Final = (
    "brokerClusterName",
    "brokerName",
    "mappedFileSizeCommitLog",
    "messageDelayLevel",
)
# What is smaller here: older messages are deleted, larger ones refused after a switch.
_NOT_BELOW_KEYS: Final = ("fileReservedTime", "maxMessageSize")
# Messages come within a tenth of a second, topics within ten seconds.
_LOOK_AGAIN_S: Final = (0.0, 0.2, 0.5, 1.0, 5.0, 6.0)


class Comparison(NamedTuple):
    """What is not equal, each in a sentence; how much was compared."""

    differences: list[str]
    topics: int
    queues: int


class BrokerPair:
    """A master of RocketMQ and a replica here."""

    def __init__(self, remoting: RemotingClient, master: str, replica: str) -> None:
        """Ask both where clients ask: "host:port"."""
        self._remoting = remoting
        self._master = master
        self._replica = replica

    async def settings(self) -> list[str]:
        """Compare what must be equal, and return what is not, or stands in the way of a switch.

        Raises:
            MailboatError: one of them does not answer.
        """
        theirs, ours = [
            decode_properties_text(await self._ask(address, RequestCode.GET_BROKER_CONFIG))
            for address in (self._master, self._replica)
        ]
        found = [
            f"{key} is {theirs[key]} at the master, and {ours.get(key)} here"
            for key in _EQUAL_KEYS
            if key in theirs and theirs[key] != ours.get(key)
        ]
        found += [
            f"{key} is {theirs[key]} at the master, and only {ours[key]} here"
            for key in _NOT_BELOW_KEYS
            if _number(theirs, key) > _number(ours, key) >= 0
        ]
        standing = await self._standing(self._master)
        own = await self._standing(self._replica)
        begin, own_begin = (int(info["commitLogMinOffset"]) for info in (standing, own))
        if own_begin > begin:
            found.append(
                f"the log here begins at {own_begin}, that of the master at {begin}: older "
                "messages are not here"
            )
        if (waiting := standing.get("timerCongestNum", "0")) != "0":
            found.append(
                f"{waiting} messages wait in the master's timer wheel (TIMER_DELIVER_MS and the "
                "like, and what consumers in POP mode have in their hands), which nobody delivers "
                "here: let them come due before the switch"
            )
        return found

    async def queues(self) -> Comparison:
        """Compare the offsets of all queues.

        Raises:
            MailboatError: one of them does not answer.
        """
        body = await self._ask(self._master, RequestCode.GET_ALL_TOPIC_CONFIG)
        topics = sorted(decode_topic_table(body).topic_config_table)
        found = await each(topics, self._compare_topic)
        differences = [text for texts, _ in found for text in texts]
        return Comparison(differences, len(topics), sum(count for _, count in found))

    async def progress(self) -> list[str]:
        """Compare how far consumers have read, and which delayed messages are delivered.

        They come here each 10 s: while messages are consumed they are never equal.

        Raises:
            MailboatError: one of them does not answer.
        """
        theirs, ours = [
            read_now(read_offsets(await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)))
            for address in (self._master, self._replica)
        ]
        behind = sum(
            any(offset > ours.table.get(key, {}).get(queue, -1) for queue, offset in queues.items())
            for key, queues in theirs.table.items()
        )
        found = []
        if behind:
            found.append(
                f"{behind} of {len(theirs.table)} groups in topics have read further there"
            )
        delivered, known = [
            read_now(read_delay_offsets(await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)))
            for address in (self._master, self._replica)
        ]
        levels = [
            level
            for level, offset in sorted(delivered.state.offset_table.items())
            if offset > known.state.offset_table.get(level, 0)
        ]
        if levels:
            names = ", ".join(map(str, levels))
            found.append(f"more delayed messages are delivered there, of the levels {names}")
        return found

    async def _compare_topic(self, topic: str) -> tuple[list[str], int]:
        before = await self._bounds(self._master, topic)
        if before is None:
            return [], 0  # It was deleted a moment ago.
        texts: list[str] = []
        for pause_s in _LOOK_AGAIN_S:
            await asyncio.sleep(pause_s)
            ours = await self._bounds(self._replica, topic)
            after = await self._bounds(self._master, topic)
            texts = _differences(topic, before, ours, after or before)
            if not texts:
                break
        return texts, len(before)

    async def _bounds(self, address: str, topic: str) -> dict[int, TopicOffset] | None:
        """Return the bounds of a topic's queues, None where there is no such topic."""
        try:
            body = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise
        return {queue.queue_id: bounds for queue, bounds in decode_topic_stats(body).items()}

    async def _standing(self, address: str) -> dict[str, str]:
        return decode_kv_table(await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO))

    async def _ask(
        self, address: str, code: int, fields: dict[str, ExtValue] | None = None
    ) -> bytes:
        return (await call(self._remoting, address, code, fields, timeout_s=_TIMEOUT_S)).body


def _number(config: dict[str, str], key: str) -> int:
    """Return a setting that is a number, -1 where there is none."""
    value = config.get(key, "")
    is_number = value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    return int(value) if is_number else -1


def _differences(
    topic: str,
    before: dict[int, TopicOffset],
    ours: dict[int, TopicOffset] | None,
    after: dict[int, TopicOffset],
) -> list[str]:
    """Compare the queues of a topic with what the master said before and afterwards."""
    if ours is None:
        return [f"topic {topic} is not here"]
    texts = []
    for queue_id, bounds in before.items():
        low, high = bounds.max_offset, after.get(queue_id, bounds).max_offset
        own = ours.get(queue_id)
        if own is None:
            texts.append(f"{topic} queue {queue_id} is not here")
        elif not low <= own.max_offset <= high:
            texts.append(
                f"{topic} queue {queue_id} ends at {own.max_offset}, at the master at {low}"
            )
        elif own.min_offset > bounds.min_offset:
            texts.append(
                f"{topic} queue {queue_id} begins at {own.min_offset}, at the master at "
                f"{bounds.min_offset}"
            )
    return texts
