"""Tests of mailboat.cli.servers: who a command says it is, and how it connects."""

import ssl
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from mailboat.cli.client_command import explain
from mailboat.cli.servers import Servers, servers_options
from mailboat.config.loading import load_settings
from mailboat.errors import BrokerError, ConnectError, ConnectionLostError
from mailboat.security.client_security import OPEN, ClientSecurity, ClientTls, Credentials

FOUND: list[Servers] = []


@click.command()
@servers_options
def command(servers: Servers) -> None:
    """Keep what was understood, and say how a refusal is explained."""
    FOUND.append(servers)
    remark = "User:alice has no permission to access Topic:T from 10.0.0.1, no matched policies."
    click.echo(explain(BrokerError(16, remark)))
    click.echo(explain(BrokerError(16, "the topic[T] sending message is forbidden")))
    lost = ConnectionLostError("a:1 closed the connection")
    click.echo(explain(caused(ConnectError("a name server (x)"), lost)))
    click.echo(explain(lost))


def caused(error: Exception, cause: Exception) -> Exception:
    """Return an error as `raise error from cause` leaves it."""
    error.__cause__ = cause
    return error


def run(*words: str, **env: str) -> Result:
    """Run the command; `env` are the variables behind MAILBOAT_."""
    FOUND.clear()
    return CliRunner().invoke(command, words, env={f"MAILBOAT_{k}": v for k, v in env.items()})


def security(*words: str, **env: str) -> ClientSecurity:
    """Return what a command got."""
    result = run(*words, **env)
    assert result.exit_code == 0, result.output
    return FOUND[0].security


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    """Return a file with the secret `from-file`."""
    path = tmp_path / "secret"
    path.write_text("from-file\n")
    return str(path)


@pytest.fixture
def acl_file(tmp_path: Path) -> str:
    """Return a tools.yml of user carol."""
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: carol\nsecretKey: from-tools\n")
    return str(path)


@pytest.fixture
def pem(tmp_path: Path) -> str:
    """Return a file that is there; it is read when something is connected."""
    path = tmp_path / "x.pem"
    path.write_text("")
    return str(path)


def test_nothing_said_is_open() -> None:
    """As before there were users."""
    assert security() == OPEN


def test_who_and_the_secret(secret_file: str, acl_file: str) -> None:
    """By options, by the environment, or both; what is typed wins."""
    alice = Credentials("alice", "from-file")
    by_env = Credentials("bob", "from-env")
    assert security("--access-key", "alice", "--secret-key-file", secret_file).credentials == alice
    assert security(ACCESS_KEY="bob", SECRET_KEY="from-env").credentials == by_env
    assert security(ACCESS_KEY="alice", SECRET_KEY_FILE=secret_file).credentials == alice
    assert security("--access-key", "bob", SECRET_KEY="from-env").credentials == by_env
    typed = ("--secret-key-file", secret_file)
    assert security(*typed, ACCESS_KEY="alice", SECRET_KEY="from-env").credentials == alice
    carol = Credentials("carol", "from-tools")
    assert security("--acl-file", acl_file).credentials == carol
    assert security(ACL_FILE=acl_file).credentials == carol
    assert security("--acl-file", acl_file, ACCESS_KEY="bob", SECRET_KEY="x").credentials == carol
    typed = ("--access-key", "bob")
    assert security(*typed, ACL_FILE=acl_file, SECRET_KEY="from-env").credentials == by_env


@pytest.mark.parametrize(
    ("words", "env", "sentence"),
    [
        (["--access-key", "a"], {}, "has no secret key; set MAILBOAT_SECRET_KEY"),
        (["--secret-key-file", "S"], {}, "no access key; give --access-key or MAILBOAT_ACCESS_KEY"),
        ([], {"SECRET_KEY": "s"}, "no access key"),
        (["--access-key", "a", "--acl-file", "A"], {}, "both say who you are"),
        ([], {"ACCESS_KEY": "a", "ACL_FILE": "A"}, "both say who you are"),
        ([], {"ACCESS_KEY": "a", "SECRET_KEY": "s", "SECRET_KEY_FILE": "S"}, "both set; unset one"),
        (["--secret-key", "s"], {}, "No such option"),
        (["--tls-trust", "P"], {}, "TLS is off; add --tls"),
        ([], {"TLS_CLIENT_TRUST_CERT_PATH": "P"}, "TLS is off; add --tls"),
        (["--tls-insecure"], {}, "TLS is off; add --tls"),
        (["--tls", "--tls-cert", "P"], {}, "--tls-cert and --tls-key go together"),
        (["--tls", "--tls-insecure", "--tls-trust", "P"], {}, "leave one out"),
        (["--tls", "--tls-insecure", "--tls-server-name", "a"], {}, "leave one out"),
        (["--tls-server-name", "a"], {}, "--tls-server-name is given but TLS is off; add --tls"),
        ([], {"TLS_SERVER_NAME": "a"}, "--tls-server-name is given but TLS is off; add --tls"),
        (["--tls", "--tls-trust", "nowhere.pem"], {}, "does not exist"),
        (["--tls"], {"TLS_CLIENT_AUTH_SERVER": "no"}, "neither true nor false"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(
    words: list[str],
    env: dict[str, str],
    sentence: str,
    secret_file: str,
    acl_file: str,
    pem: str,
) -> None:
    """It says what to do; nothing is connected, and no secret is shown."""
    files = {"S": secret_file, "A": acl_file, "P": pem}
    result = run(
        *(files.get(word, word) for word in words),
        **{name: files.get(value, value) for name, value in env.items()},
    )
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())
    assert "from-" not in result.output


def test_tls(pem: str) -> None:
    """Servers are checked unless somebody says otherwise."""
    assert security("--tls").tls == ClientTls()
    assert security(TLS_ENABLE="true").tls == ClientTls()
    assert security("--no-tls", TLS_ENABLE="true").tls is None
    assert security("--no-tls", TLS_CLIENT_TRUST_CERT_PATH=pem).tls is None
    assert security(TLS_ENABLE="false", TLS_CLIENT_TRUST_CERT_PATH=pem).tls is None
    named = ClientTls(server_name="mq.example")
    assert security("--tls", "--tls-server-name", "mq.example").tls == named
    assert security("--tls", TLS_SERVER_NAME="mq.example").tls == named
    assert security("--tls", "--tls-insecure").tls == ClientTls(auth_server=False)
    found = security("--tls", TLS_CLIENT_AUTH_SERVER="false", TLS_CLIENT_TRUST_CERT_PATH=pem)
    assert found.tls == ClientTls(auth_server=False, trust_cert_path=pem)
    found = security("--tls", "--tls-check", TLS_CLIENT_AUTH_SERVER="false")
    assert found.tls == ClientTls()
    words = ("--tls", "--tls-trust", pem, "--tls-cert", pem, "--tls-key", pem)
    assert security(*words, TLS_CLIENT_KEY_PASSWORD="p").tls == ClientTls(
        trust_cert_path=pem, cert_path=pem, key_path=pem, key_password="p"
    )


def test_a_refusal_says_who_asked(secret_file: str) -> None:
    """What is forbidden to everybody has nothing to do with users."""
    unsigned, forbidden, *_ = run().output.splitlines()
    assert "User:alice has no permission to access Topic:T" in unsigned
    assert "the request was not signed: --access-key" in unsigned
    assert forbidden == (
        "refused with NO_PERMISSION (16): the topic[T] sending message is forbidden"
    )
    signed, *_ = run("--access-key", "alice", "--secret-key-file", secret_file).output.splitlines()
    assert "it was signed as alice" in signed
    assert "from-file" not in signed


def test_a_lost_plain_connection_may_have_met_a_port_that_takes_tls_only() -> None:
    """One by TLS has not."""
    lost = "a:1 closed the connection"
    hint = "; a port that takes TLS only does that to a command without --tls"
    assert run().output.splitlines()[-2:] == [
        f"no connection to a name server (x){hint}",
        lost + hint,
    ]
    by_tls = run("--tls").output.splitlines()
    assert by_tls[-2].endswith(
        "; check --tls, --tls-cert and --tls-key against what that port asks for"
    )
    assert by_tls[-1] == lost


@pytest.mark.parametrize(
    ("verify_code", "hint"),
    [
        (62, "name or IP address by which its server is reached: that of --namesrv, and what a"),
        (64, "a broker tells clients (brokerIP1)"),
        (9, "renew it on the server, or set the clock"),
        (10, "renew it on the server, or set the clock"),
        (20, "--tls-trust names the file of the authority"),
        (None, "check --tls, --tls-cert and --tls-key"),
    ],
    ids=["other name", "other address", "not yet", "expired", "other authority", "not TLS"],
)
def test_a_failed_handshake_is_not_a_server_that_is_not_there(
    verify_code: int | None, hint: str
) -> None:
    """What may help is about the certificate."""
    cause = ssl.SSLError("x") if verify_code is None else ssl.SSLCertVerificationError("x")
    if isinstance(cause, ssl.SSLCertVerificationError):
        cause.verify_code = verify_code or 0
    sentence = explain(caused(ConnectError("a:1: why"), cause))
    assert sentence.startswith("no connection to a:1: why; ")
    assert hint in sentence
    assert "server runs" not in sentence


@pytest.mark.parametrize("role", ["broker", "namesrv", "standalone"])
def test_a_server_may_run_where_commands_do(role: str) -> None:
    """It refuses variables that it does not know; those of the commands are known."""
    variables = [
        variable
        for option in command.params
        if isinstance(option, click.Option) and option.envvar and option.name != "namesrv"
        for variable in [str(option.envvar)]
    ]
    assert "MAILBOAT_ACCESS_KEY" in variables
    environ = {name: "true" if name.endswith("_ENABLE") else "/x" for name in variables}
    environ |= {"MAILBOAT_SECRET_KEY": "s3cret", "MAILBOAT_TLS_CLIENT_KEY_PASSWORD": "p4ss"}
    settings = load_settings(role, environ=environ)  # type: ignore[arg-type]
    assert settings.tls.enable
    assert settings.tls.client_trust_cert_path == "/x"
    assert "s3cret" not in repr(settings)
