"""What docs/security.md shows is taken as it stands."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import Authority

from mailboat.cli import main
from mailboat.config import Role, load_settings, parse_overrides
from mailboat.config.settings import listeners_of
from mailboat.security.user_files import UserFolder
from mailboat.web.permissions import ROWS

DOC = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
ROOT = "a-long-secret"
PORTS = ("--namesrv-port=0", "--broker-port=0", "--http-port=0")


def blocks(language: str) -> list[str]:
    """Return the snippets of a language, without the line ends that a backslash hides."""
    found = re.findall(rf"```{language}\n(.*?)```", DOC, re.DOTALL)
    return [block.replace("\\\n", "") for block in found]


def commands(word: str) -> list[list[str]]:
    """Return the words of all lines that begin a command of mailboat, such as `standalone`."""
    lines = [line.rpartition("| ")[2] for block in blocks("sh") for line in block.splitlines()]
    words = [shlex.split(line) for line in lines]
    return [each[1:] for each in words if each[:2] == ["mailboat", word]]


@contextmanager
def serving(words: list[str], **environment: str) -> Iterator[dict[str, str]]:
    """Run a server on free ports, and yield its addresses."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mailboat.cli", *words, *PORTS, "--ready-json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=20)[1]
        yield json.loads(line)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def run_the_program(namesrv: str, trust: Path) -> None:
    """Have a message sent by what is shown in Python, in the name of root."""
    (program,) = blocks("python")
    there = {
        '"orders"': '"root"',
        "secret)": f"{ROOT!r})",
        "ca.pem": str(trust),
        "ns:9876": namesrv,
        "...": 'print((await producer.send(Message("orders", b"x"))).status.name)',
    }
    for printed, real in there.items():
        assert printed in program
        program = program.replace(printed, real)
    code = (
        "import asyncio\n"
        "from mailboat.client import ClientSecurity, ClientTls, Credentials, Message, Producer\n"
        "async def made():\n" + textwrap.indent(program, "    ") + "asyncio.run(made())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("SEND_OK\n", 0), done.stderr


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Whom clients trust."""
    return Authority(tmp_path / "ours")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["name", "address"])
def test_the_lock_lets_root_in_by_tls_and_nobody_else(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    """With a name in the certificate, where routes tell the name and where they tell an address."""
    (words,) = commands("standalone")
    pair = authority.issue("localhost")
    there = {
        "broker.example.com": host,
        "/certs/tls.crt": str(pair.certificate),
        "/certs/tls.key": str(pair.key),
    }
    for printed, real in there.items():
        assert any(printed in word for word in words)
        words = [word.replace(printed, real) for word in words]
    # A test machine's disk may be rather full.
    words += ["--data-dir", str(tmp_path / "store"), "-o", "diskSpaceWarningLevelRatio=100"]
    (line,) = [line for line in blocks("sh")[0].splitlines() if line.startswith("export")]
    name, _, value = shlex.split(line)[1].partition("=")
    assert json.loads(value)["password"] == ROOT
    secret = tmp_path / "root"
    secret.write_text(ROOT)
    with serving(words, **{name: value}) as addresses:
        port = addresses["namesrv"].rpartition(":")[2]
        asked = ["-n", f"localhost:{port}", "--tls", "--tls-trust", str(authority.trust)]
        signed = ["--access-key", "root", "--secret-key-file", str(secret)]
        if host != "localhost":
            assert main(["topic", "create", "orders", *asked, *signed]) == 1
            assert "brokerIP1" in capsys.readouterr().err
            asked += ["--tls-server-name", "localhost"]
        assert addresses["broker"].startswith(f"{host}:")
        assert main(["topic", "create", "orders", *asked, *signed]) == 0
        assert main(["topic", "list", *asked, *signed]) == 0
        assert "orders" in capsys.readouterr().out
        if host == "localhost":
            run_the_program(f"localhost:{port}", authority.trust)
        assert main(["topic", "list", *asked]) == 1
        assert "the request was not signed" in capsys.readouterr().err
        assert main(["topic", "list", "-n", f"localhost:{port}", *signed]) == 1
        assert "--tls" in capsys.readouterr().err


def test_options_of_the_produce_command_are_there(tmp_path: Path, authority: Authority) -> None:
    """With nothing to send it ends well."""
    (words,) = commands("produce")
    secret = tmp_path / "orders"
    secret.write_text("x")
    there = {
        "/certs/ca.crt": str(authority.trust),
        "/secrets/orders": str(secret),
        "broker.example.com:9876": "127.0.0.1:1",
    }
    assert set(there) <= set(words)
    command = [sys.executable, "-m", "mailboat.cli", *(there.get(word, word) for word in words)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "sent 0 messages" in done.stderr


def test_the_file_of_a_user_is_taken(tmp_path: Path) -> None:
    """With all that may be in one."""
    (text,) = blocks("json")
    (tmp_path / "orders.json").write_text(text)
    folder = UserFolder(str(tmp_path))
    folder.look()
    assert folder.problems == []
    assert list(folder.records) == ["orders"]


@pytest.mark.parametrize("role", ["namesrv", "broker"])
def test_the_settings_of_listeners_are_taken(role: Role) -> None:
    """Of name servers and of brokers."""
    (words,) = [words for words in commands(role) if "-o" in words]
    settings = load_settings(role, overrides=parse_overrides([words[words.index("-o") + 1]]))
    ((name, port),) = [(each.name, each.port) for each in listeners_of(settings)]
    assert (name, port) == ("outside", {"namesrv": 9900, "broker": 10920}[role])


def _shown_routes() -> set[tuple[str, str]]:
    """Return method and path of what the table of HTTP routes has, names in paths as `*`."""
    rows = re.search(r"\| route \| needs \|\n(.*?)\n\n", DOC, re.DOTALL)
    assert rows is not None
    shown: set[tuple[str, str]] = set()
    for row in rows[1].splitlines()[1:]:
        methods, is_complete = ["GET"], True
        for word in row.split("|")[1].replace(",", " ").split():
            if word.isupper():
                methods, is_complete = ([word] if is_complete else [*methods, word]), False
                continue
            parts = ["*" if part.isupper() else part for part in word.strip("`").split("/")]
            path = "/".join(parts) if word.startswith("`") else "/api/v1/" + "/".join(parts)
            shown |= {(method, path) for method in methods}
            is_complete = True
    return shown


def test_the_table_of_routes_has_all_of_them() -> None:
    """A route that is not in the table is said to be refused to everybody."""
    real = {(method, re.sub(r"\{\w+\}", "*", path)) for method, path in ROWS}
    shown = _shown_routes()
    posted = {row for row in shown if row[1].endswith("...")}
    assert posted == {("POST", "/api/v1/replica/...")}
    shown = shown - posted | {row for row in real if row[1].startswith("/api/v1/replica/")}
    assert shown == real
