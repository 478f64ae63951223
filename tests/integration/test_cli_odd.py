"""Commands with messages that no tidy client sends, and with nobody at their standard error."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from cli_shell import Shell, length, make_topic

from mailboat.client.instance import ClientInstance
from mailboat.model.sys_flag import COMPRESSED
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.testing.cluster import Cluster

NOT_PACKED = b"not compressed"


async def send_raw(cluster: Cluster, body: bytes, topic: str = "T", **fields: ExtValue) -> None:
    """Send with header fields of SEND_MESSAGE_V2 that our producer never sends."""
    instance = ClientInstance(cluster.namesrv_addresses)
    await instance.start()
    try:
        (queue,) = await instance.routes.write_queues(topic)
        header: dict[str, ExtValue] = {
            "a": "G", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "h": 0, "i": "", "j": 0,
            "g": time.time_ns() // 1_000_000, **fields,
        }  # fmt: skip
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body)
        address = await instance.routes.master_address(queue)
        assert (await instance.remoting.request(address, command, 5.0)).code == 0
    finally:
        await instance.close()


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_body_that_cannot_be_unpacked_hides_no_other(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], as_json: bool
):
    """It is printed as it is stored, with a warning, and what is behind it comes too."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        await send_raw(cluster, b"one")
        await send_raw(cluster, NOT_PACKED, f=COMPRESSED)
        await send_raw(cluster, b"three")
        words = ["--json"] if as_json else []
        out = await shell.run("consume", "T", "--count", "3", "--timeout", "9", *words)
        bodies = (
            [json.loads(line)["body"] for line in out.splitlines()] if as_json else out.split("\n")
        )
        assert bodies[:3] == ["one", NOT_PACKED.decode(), "three"]
        shown = await shell.json("message", "browse", "T")
        assert [row["body"] for row in shown] == ["one", NOT_PACKED.decode(), "three"]
        place = ("-t", "T", "-b", "broker-a", "-q", "0", "--offset", "1")
        assert (await shell.json("message", "show", *place))["body"] == NOT_PACKED.decode()


@pytest.mark.parametrize("born", [1_764_000_000_000_000_000, 2**63 - 1])
async def test_a_time_of_birth_that_is_no_time_is_shown_as_a_number(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], born: int
):
    """Such as nanoseconds: producers may send any number."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")
        await send_raw(cluster, b"one", g=born)
        place = ("-t", "T", "-b", "broker-a", "-q", "0", "--offset", "0")
        assert (await shell.json("message", "show", *place))["born_time"] == f"{born} ms"
        assert str(born) in await shell.run("message", "show", *place)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2> >(exec true)"])
async def test_nobody_at_standard_error_changes_no_exit_code(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], redirection: str
):
    """Lines that are not stored are not exit code 0, and good lines are stored."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        await make_topic(cluster, "T")

        async def produce(data: bytes) -> int | None:
            # The pause lets a reader of the pipe go away.
            script = f'sleep 0.3; exec "$@" {redirection}'
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", script, "-", *shell.command("produce", "T", "--json"),
                stdin=asyncio.subprocess.PIPE, env=shell.environment(),
            )  # fmt: skip
            await asyncio.wait_for(process.communicate(data), 60)
            return process.returncode

        assert await produce(b'{"body":"one"}\nno JSON\n') == 1
        assert await produce(b'{"body":"two"}\n') == 0
        assert await length(cluster, "T") == 2


@pytest.mark.parametrize("text", ["nan", "-1", "x"])
async def test_a_timeout_is_a_number_of_seconds(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], text: str
):
    """NaN is in no order with other numbers: the command would ask without end."""
    async with Cluster(tmp_path) as cluster:
        shell = Shell(cluster, capsysbinary)
        assert "--timeout" in await shell.fails("consume", "T", f"--timeout={text}", code=2)
