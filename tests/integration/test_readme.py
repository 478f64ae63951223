"""The programs that the README shows run as they stand."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
_PROGRAMS = [
    block
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    if "asyncio.run" in block
]


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    """Address of the name server of a broker of its own."""
    ports = [f"--{name}-port=0" for name in ("namesrv", "broker", "http")]
    command = [sys.executable, "-m", "mailboat.cli", "standalone", "--ready-json", *ports]
    command += ["-o", "diskSpaceWarningLevelRatio=100"]  # A test machine's may be rather full.
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["namesrv"]
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def _run(program: str, namesrv: str) -> str:
    text = program.replace("127.0.0.1:9876", namesrv)
    assert text != program
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_producer_and_consumer_of_the_readme_run(namesrv: str) -> None:
    """Ten messages are sent, and the consumer prints all ten."""
    producer, consumer = _PROGRAMS
    sent = _run(producer, namesrv).splitlines()
    assert len(sent) == 10
    assert all(line.startswith("SEND_OK") for line in sent)
    received = _run(consumer, namesrv)
    assert {f"b'order {number}'" for number in range(10)} == set(
        re.findall(r"b'order \d+'", received)
    )
