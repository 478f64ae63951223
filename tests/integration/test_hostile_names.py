"""Names and numbers that nobody sends by accident: refused, and nothing else happens."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from raw_client import RawClient
from yarl import URL

from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.testing.cluster import Cluster

ILLEGAL = ["../x", "../../outside", "..", ".", "", "a/b", "a\0b", "x" * 128, "new\nline"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a broker that has never stored anything."""
    async with Cluster(tmp_path / "cluster", options={"httpPort": "0"}) as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[RawClient]:
    """Return a connection to it."""
    connected = RawClient(cluster.broker().address)
    yield connected
    await connected.close()


def empty_folders(queues: Path, root: Path) -> set[str]:
    """Make folders that the names would lead to; return every folder below a root."""
    queues.mkdir(exist_ok=True)
    (queues.parent / "x").mkdir()
    (queues.parent.parent / "outside").mkdir()
    return folders(root)


def folders(root: Path) -> set[str]:
    """Return every folder below a root."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}


async def test_no_name_removes_a_folder_that_is_no_topics(
    tmp_path: Path, cluster: Cluster, client: RawClient
) -> None:
    """Not by code 215 and not over HTTP; the refusal is the one of making such a topic."""
    before = empty_folders(Path(cluster.broker().store.paths.consume_queue), tmp_path)
    base = f"http://{await cluster.http_address()}"
    async with aiohttp.ClientSession(base) as http:
        for name in ILLEGAL:
            answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
            assert answer.code == ResponseCode.INVALID_PARAMETER, name
            assert "topic name" in (answer.remark or "")
            if name not in ("", ".", ".."):
                url = URL(f"{base}/api/v1/topics/{quote(name, safe='')}", encoded=True)
                async with http.delete(url) as refused:
                    assert refused.status == 400, name
                    assert "topic name" in (await refused.json())["error"]
    assert folders(tmp_path) == before


async def test_a_group_with_an_illegal_name_is_not_deleted(client: RawClient) -> None:
    """One that is not there is no error, as long as there could be one."""
    delete = RequestCode.DELETE_SUBSCRIPTIONGROUP
    for name in ("../x", "", "a\0b", "x" * 256):
        answer = await client.call(delete, {"groupName": name})
        assert answer.code == ResponseCode.INVALID_PARAMETER, name
        assert "group name" in (answer.remark or "")
    await client.ok(delete, {"groupName": "unknown"})


async def test_a_group_whose_retry_topic_could_not_exist_is_not_made(client: RawClient) -> None:
    """Its name and the prefix together would be no file name: messages sent back were lost."""
    for length, is_made in ((248, True), (249, False)):
        group = "g" * length
        await client.heartbeat("T", group=group)
        answer = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
        assert (answer.code == ResponseCode.SUCCESS) == is_made


PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
    "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
    "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip
SEND = {
    "a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0,
    "k": False, "l": 16,
}  # fmt: skip


def frame(code: int, opaque: int, fields: Mapping[str, object], body: bytes = b"") -> bytes:
    """Return one request."""
    command = RemotingCommand.request(
        code, {name: str(value) for name, value in fields.items()}, body
    )
    command.opaque = opaque
    return command.encode()


async def answers_to(address: str, frames: list[bytes]) -> dict[int, str]:
    """Send frames with one write; return the headers of as many answers by opaque."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(frames))
    answers = {}
    async with asyncio.timeout(10):
        while len(answers) < len(frames):
            data = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            text = data[4 : 4 + int.from_bytes(data[1:4])].decode()
            answers[json.loads(text)["opaque"]] = text
    writer.close()
    await writer.wait_closed()
    return answers


@pytest.mark.parametrize("name", [name for name, value in PULL.items() if type(value) is int])
async def test_one_bad_pull_leaves_the_others_of_the_same_read_answered(
    client: RawClient, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A number of 400 digits is refused by the name of its field, without a traceback."""
    await client.make_topic("T")
    code = RequestCode.PULL_MESSAGE
    bad = frame(code, 2, PULL | {name: "9" * 400})
    answers = await answers_to(client.address, [frame(code, 1, PULL), bad, frame(code, 3, PULL)])
    assert '"code":19' in answers[1]
    assert '"code":19' in answers[3]
    assert f"field '{name}' is not an int" in answers[2]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("name", [name for name, value in SEND.items() if type(value) is int])
@pytest.mark.parametrize("topic", ["T", "%RETRY%G"])
async def test_one_bad_send_leaves_the_others_of_the_same_read_answered(
    client: RawClient, caplog: pytest.LogCaptureFixture, topic: str, name: str
) -> None:
    """A number of 400 digits is refused, or means the highest one; there is no traceback."""
    await client.make_topic("T")
    code = RequestCode.SEND_MESSAGE_V2
    bad = frame(code, 2, SEND | {"b": topic, name: "9" * 400}, b"bad")
    good = [frame(code, opaque, SEND, b"good") for opaque in (1, 3)]
    answers = await answers_to(client.address, [good[0], bad, good[1]])
    assert answers[1].startswith('{"code":0,')
    assert answers[3].startswith('{"code":0,')
    assert "internal error" not in answers[2]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_fault_in_one_send_is_its_own(
    cluster: Cluster, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw is logged and answered; the sends before and after it are stored."""
    await client.make_topic("T")

    def fails(*_: object) -> None:
        raise ZeroDivisionError("nobody foresaw it")

    monkeypatch.setattr(cluster.broker().transactions, "prepare", fails)
    code = RequestCode.SEND_MESSAGE_V2
    bad = frame(code, 2, SEND | {"i": "TRAN_MSG\x01true\x02"}, b"half")
    good = [frame(code, opaque, SEND, b"good") for opaque in (1, 3)]
    answers = await answers_to(client.address, [good[0], bad, good[1]])
    assert answers[1].startswith('{"code":0,')
    assert answers[3].startswith('{"code":0,')
    assert "internal error: ZeroDivisionError" in answers[2]
