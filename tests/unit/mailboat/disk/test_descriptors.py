"""The limit of open files: raised where a server starts, and named where it is reached."""

import errno
import subprocess
import sys

from mailboat.disk.descriptors import reason_of

_NODE = """
import asyncio, resource
from mailboat.config import load_settings
from mailboat.disk.descriptors import descriptor_limit
from mailboat.node import Node

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))

async def main():
    options = {"bindAddress": "127.0.0.1", "listenPort": "0", "httpPort": "-1"}
    node = Node(load_settings("namesrv", overrides=options))
    await node.start()
    print(descriptor_limit())
    await node.shutdown()

asyncio.run(main())
"""


def test_a_server_takes_the_descriptors_that_the_machine_grants() -> None:
    """The soft limit becomes the hard one."""
    done = subprocess.run(
        [sys.executable, "-c", _NODE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "300\n", done.stderr


def test_the_reason_says_what_is_missing_and_what_to_do() -> None:
    """Descriptors of the process, of the machine, anything else."""
    assert "ulimit -n" in reason_of(OSError(errno.EMFILE, "Too many open files"))
    assert "fs.file-max" in reason_of(OSError(errno.ENFILE, "File table overflow"))
    assert reason_of(OSError(errno.ENOSPC, "No space left")) == "No space left"
