"""SQL92 filters: mailboat and the real broker of RocketMQ 5.5.0 take the same messages.

The same messages are stored on both, and for every condition of the golden table both are pulled
to the end of the queue. The one kind of difference there is, text behind a complete condition, is
pinned down as well.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from mailboat.model.properties import encode_properties
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import CheckClientConfig, encode_check_client_config
from mailboat.remoting.client import RemotingClient

# Test folders are no packages, so the module beside the golden tables is found by path.
sys.path.insert(0, str(Path(__file__).parents[1] / "golden" / "sql92"))

from sql92_golden import condition_rows, golden_properties, refused_rows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_LINE = "5.5.0"
_TOPIC = "sql92"
_GROUP = "sql92-readers"
_PULL_SUBSCRIPTION = 4
_TIMEOUT_S = 30.0
_VARIATIONS = 60


class Broker(NamedTuple):
    """One broker under comparison."""

    remoting: RemotingClient
    address: str

    async def call(
        self, code: int, fields: Mapping[str, str | int | bool], body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, fields, body)
        return await self.remoting.request(self.address, command, _TIMEOUT_S)

    async def store(self, messages: Iterable[Mapping[str, str]]) -> None:
        """Store messages with these properties, their numbers as bodies, on an empty topic."""
        if await self.stored():
            return
        for number, properties in enumerate(messages):
            fields: dict[str, str | int | bool] = {
                "a": "PG", "b": _TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0,
                "i": encode_properties(properties), "j": 0, "k": False,
            }  # fmt: skip
            code = RequestCode.SEND_MESSAGE_V2
            answer = await self.call(code, fields, str(number).encode())
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        async with asyncio.timeout(_TIMEOUT_S):
            # A Java broker's queues follow its log.
            while await self.stored() <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def stored(self) -> int:
        """Return how many messages can be pulled."""
        answer = await self.call(RequestCode.GET_MAX_OFFSET, {"topic": _TOPIC, "queueId": 0})
        # A topic that no message has made yet is unknown.
        return int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0

    async def check(self, expression: str) -> int:
        """Ask 46 whether an expression can be used."""
        subscription = SubscriptionData(_TOPIC, expression, expression_type="SQL92")
        body = encode_check_client_config(CheckClientConfig("c", _GROUP, subscription))
        return (await self.call(RequestCode.CHECK_CLIENT_CONFIG, {}, body)).code

    async def taken(self, expression: str) -> list[int]:
        """Return the numbers of the messages that an expression takes."""
        numbers: list[int] = []
        queue_offset, end = 0, 1
        while queue_offset < end:
            fields: dict[str, str | int | bool] = {
                "consumerGroup": _GROUP, "topic": _TOPIC, "queueId": 0, "queueOffset": queue_offset,
                "maxMsgNums": 32, "sysFlag": _PULL_SUBSCRIPTION, "commitOffset": 0,
                "suspendTimeoutMillis": 0, "subscription": expression, "subVersion": 1,
                "expressionType": "SQL92",
            }  # fmt: skip
            answer = await self.call(RequestCode.PULL_MESSAGE, fields)
            assert answer.code in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            ), f"{answer.code} {answer.remark}"
            if answer.code == ResponseCode.SUCCESS:
                numbers += [int(message.body) for message in decode_records(answer.body)]
            following = int(answer.ext_fields["nextBeginOffset"])
            assert following > queue_offset
            queue_offset, end = following, int(answer.ext_fields["maxOffset"])
        return numbers


def _messages() -> list[dict[str, str]]:
    """Return the golden message and variations: properties missing, or with each other's values."""
    golden = golden_properties()
    choose = random.Random(92)
    messages = [golden, {"other": "x"}]
    for _ in range(_VARIATIONS):
        names = choose.sample(sorted(golden), choose.randint(3, len(golden)))
        values = choose.sample(list(golden.values()), len(names))
        kept = choose.random() < 0.5
        messages.append(
            {
                name: golden[name] if kept else value
                for name, value in zip(names, values, strict=True)
            }
        )
    return messages


@pytest.fixture(scope="module")
def addresses(
    java_namesrv: Callable[[str], str],
    java_classpath: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterable[tuple[str, str]]:
    """Run the real broker and mailboat; return their addresses."""
    from interop_process import MailboatStandalone
    from interop_servers import start_java_broker

    java_classpath("server", _LINE)
    folder = tmp_path_factory.mktemp("sql92")
    java = start_java_broker(
        _LINE,
        folder / "home",
        folder / "store",
        java_namesrv(_LINE),
        config={"enablePropertyFilter": "true"},
    )
    ours = MailboatStandalone(folder / "data", folder / "mailboat.out", {})
    try:
        yield java.address, ours.start().broker
    finally:
        ours.close()
        java.kill()


@pytest.fixture
async def brokers(addresses: tuple[str, str]) -> AsyncIterator[list[Broker]]:
    """Connect to both brokers, the real one first."""
    remoting = RemotingClient()
    brokers = [Broker(remoting, address) for address in addresses]
    for broker in brokers:
        await broker.store(_messages())
    yield brokers
    await remoting.close()


async def test_both_brokers_take_the_same_messages(brokers: list[Broker]) -> None:
    """Every condition of the golden table over sixty messages, and the golden one's result."""
    differences = []
    for condition, expected in condition_rows():
        codes = [await broker.check(condition) for broker in brokers]
        real, ours = [await broker.taken(condition) for broker in brokers]
        if codes != [0, 0] or real != ours or (0 in real) != (expected == "T"):
            differences.append((condition, expected, codes, real, ours))
    assert differences == []


async def test_both_brokers_refuse_the_same_expressions(brokers: list[Broker]) -> None:
    """Code 23 from both, but for text that RocketMQ ignores."""
    differences = []
    for row in refused_rows():
        expected = [0 if row.is_ignored else 23, 23]
        codes = [await broker.check(row.text) for broker in brokers]
        if codes != expected:
            differences.append((row.text, codes))
    assert differences == []


async def test_what_rocketmq_ignores_would_take_other_messages(brokers: list[Broker]) -> None:
    """A condition after the first one has no effect there: why mailboat refuses it."""
    real, ours = brokers
    assert await real.taken("a = 5 b = 6") == await real.taken("a = 5") == await ours.taken("a = 5")
