"""Commands that ask a broker over HTTP: who they say they are, by TLS or plainly."""

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from mailboat.cli import main
from mailboat.cli.replica.broker_http import BrokerHttp
from mailboat.security.client_security import ClientSecurity, Credentials

ANSWER = {"leader": 2}
BASIC = "Basic " + base64.b64encode(b"alice:s3cret").decode()


class Broker:
    """Answers every request with the same, and keeps the headers that came."""

    def __init__(self, status: int = 200, document: object = ANSWER) -> None:
        """Answer so."""
        self.headers: list[dict[str, str]] = []
        broker = self
        body = document if isinstance(document, bytes) else json.dumps(document).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                broker.headers.append(dict(self.headers))
                self.send_response(status)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.server.server_port}"


@contextmanager
def serving(broker: Broker) -> Iterator[Broker]:
    """Serve until the end of the block."""
    thread = threading.Thread(target=broker.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield broker
    finally:
        broker.server.shutdown()
        thread.join()
        broker.server.server_close()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without an identity."""
    for name in ("MAILBOAT_TOKEN", "MAILBOAT_ACCESS_KEY", "MAILBOAT_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


def promote(address: str, *words: str) -> int:
    """Run a command that asks one thing."""
    return main(["replica", "promote", "--http", address, *words])


def test_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token goes before a user; what is typed goes before the environment."""
    token_file = tmp_path / "token"
    token_file.write_text("t-file\n")
    with serving(Broker()) as broker:
        assert promote(broker.address) == 0
        monkeypatch.setenv("MAILBOAT_ACCESS_KEY", "alice")
        monkeypatch.setenv("MAILBOAT_SECRET_KEY", "s3cret")
        assert promote(broker.address) == 0
        monkeypatch.setenv("MAILBOAT_TOKEN", "t-env")
        assert promote(f"http://{broker.address}/") == 0
        assert promote(broker.address, "--token-file", str(token_file)) == 0
    shown = [headers.get("Authorization") for headers in broker.headers]
    assert shown == [None, BASIC, "Bearer t-env", "Bearer t-file"]


def test_a_refusal_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """In one sentence."""
    with serving(Broker(401, {"error": "this needs a valid bearer token"})) as broker:
        assert promote(broker.address) == 1
    error = capsys.readouterr().err
    assert "does not know who asks: this needs a valid bearer token; MAILBOAT_TOKEN" in error
    assert error.count("\n") == 1
    with serving(Broker(403, {"error": "User:alice has no permission"})) as broker:
        assert promote(broker.address) == 1
    assert "User:alice has no permission" in capsys.readouterr().err


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("said", [b"[" * 100_000, b"<html>", b"\xff", b" " * (32 << 20) + b"1"])
def test_an_answer_of_somebody_else_is_one_sentence(
    capsys: pytest.CaptureFixture[str], status: int, said: bytes
) -> None:
    """However deep or long it is."""
    with serving(Broker(status, said)) as broker:
        assert promote(broker.address) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mailboat: {broker.address} ")
    assert "internal error" not in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("token", ["a\nb", "gr\u00fcn"])
def test_what_is_no_token_is_refused(
    token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is sent, and it is not shown."""
    monkeypatch.setenv("MAILBOAT_TOKEN", token)
    assert promote("127.0.0.1:1") == 2
    error = capsys.readouterr().err
    assert "is no word of ASCII" in error
    assert token not in error


def test_by_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a certificate that is trusted; with another one nothing is sent."""
    authority = trustme.CA()
    trust = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trust))
    broker = Broker()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    broker.server.socket = context.wrap_socket(broker.server.socket, server_side=True)
    trusted = ("--tls", "--tls-trust", str(trust))
    with serving(broker):
        assert promote(broker.address, *trusted) == 0
        assert promote(f"https://{broker.address}", *trusted) == 0
        assert promote(f"https://{broker.address}", "--tls", "--tls-insecure") == 0
        assert len(broker.headers) == 3
        capsys.readouterr()
        assert promote(f"https://{broker.address}") == 1
        assert "its certificate is not trusted" in capsys.readouterr().err
        assert promote(f"https://{broker.address}", "--tls-trust", str(trust)) == 0
        assert len(broker.headers) == 4
        named = f"https://localhost:{broker.address.rpartition(':')[2]}"
        assert promote(named, *trusted) == 1
        assert "its certificate has another name" in capsys.readouterr().err
        assert promote(named, *trusted, "--tls-server-name", "127.0.0.1") == 0
        assert promote(broker.address, *trusted, "--tls-server-name", "other.example") == 1
        assert len(broker.headers) == 5


@pytest.mark.parametrize(
    ("scheme", "option"), [("http", "--tls"), ("https", "--no-tls")], ids=["plain", "by tls"]
)
def test_a_scheme_and_an_option_that_contradict_each_other_are_refused(
    scheme: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No token goes out plainly by mistake; what is typed goes before the environment."""
    with serving(Broker()) as broker:
        assert promote(f"{scheme}://{broker.address}", option) == 2
        assert f"--http {scheme}://... and {option} do not go together" in capsys.readouterr().err
        monkeypatch.setenv("MAILBOAT_TLS_ENABLE", "true" if scheme == "http" else "false")
        assert promote(f"{scheme}://{broker.address}") == (0 if scheme == "http" else 1)
        assert len(broker.headers) == (1 if scheme == "http" else 0)


def test_what_cannot_be_a_host_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Two dots in a row are no error of the program."""
    assert promote("http://a..b:80") == 1
    assert "no answer from a..b:80" in capsys.readouterr().err


def test_secrets_do_not_show() -> None:
    """Neither the token nor the secret key."""
    security = ClientSecurity(Credentials("alice", "s3cret"))
    shown = repr(BrokerHttp("h:1", token="t0ken", security=security))
    assert "s3cret" not in shown
    assert "t0ken" not in shown
