"""Commands with nobody at their standard error."""

import asyncio
from pathlib import Path

import pytest
from cli_shell import Shell, length, make_topic

from mailboat.testing.cluster import Cluster


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
