"""Commands that change something on several brokers, one of which refuses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cli_shell import Shell, make_topic, send

from mailboat.client import Admin, MessageQueue
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.testing.cluster import Cluster

Capture = pytest.CaptureFixture[bytes]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Return a cluster of two brokers with topic T and groups C and D."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, "T")
        await send(cluster, "T", range(20))
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            for group in ("C", "D"):
                await admin.groups.create(SubscriptionGroupConfig(group))
        yield cluster


def refuse(cluster: Cluster, *codes: int) -> None:
    """Let broker-b refuse requests of these codes."""
    processors = cluster.broker(1).dispatcher._processors
    for code in codes:
        processors[code] = lambda connection, command: command.response(
            ResponseCode.SYSTEM_ERROR, "its disk is broken"
        )


async def offsets(cluster: Cluster, group: str) -> list[int | None]:
    """Return a group's offsets in the two queues of T."""
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        queues = [MessageQueue("T", name, 0) for name in ("broker-a", "broker-b")]
        return [await admin.offsets.committed(group, queue) for queue in queues]


@pytest.mark.parametrize(
    "words",
    [
        ("reset", "C", "T", "--to", "last"),
        ("reset", "C", "T", "--offset", "10", "-q", "0"),
        ("skip", "C", "T"),
    ],
)
async def test_moved_offsets_are_named_where_a_broker_fails(
    cluster: Cluster, capsysbinary: Capture, words: tuple[str, ...]
):
    """The offsets of the first broker are moved and stay so; the error says that."""
    shell = Shell(cluster, capsysbinary)
    before = await offsets(cluster, "C")
    refuse(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    said = await shell.fails("offset", *words)
    assert said == (
        "mailboat: refused with SYSTEM_ERROR (1): its disk is broken; moved before: broker-a/0; "
        "not moved: broker-b/0"
    )
    assert await offsets(cluster, "C") == [10, before[1]]


async def test_cloned_offsets_are_named_where_a_broker_fails(
    cluster: Cluster, capsysbinary: Capture
):
    """So are those that a clone stored."""
    shell = Shell(cluster, capsysbinary)
    await shell.run("offset", "reset", "C", "T", "--to", "last")
    refuse(cluster, RequestCode.UPDATE_CONSUMER_OFFSET)
    said = await shell.fails("offset", "clone", "C", "D")
    assert said.endswith("cloned before: T@broker-a:0; not cloned: T@broker-b:0")
    assert (await offsets(cluster, "D"))[0] == 10


async def test_brokers_that_made_a_change_are_named_where_one_fails(
    cluster: Cluster, capsysbinary: Capture
):
    """Topics and groups are made, changed and deleted broker by broker."""
    shell = Shell(cluster, capsysbinary)
    refuse(
        cluster,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    )
    for words in (
        ("topic", "create", "U"),
        ("topic", "update", "T", "--perm", "r"),
        ("topic", "delete", "T", "--yes"),
        ("group", "create", "E"),
        ("group", "update", "C", "--retry-max-times", "3"),
        ("group", "delete", "D", "--yes"),
    ):
        said = await shell.fails(*words)
        assert said.endswith("; done before: broker-a; not done: broker-b"), words
