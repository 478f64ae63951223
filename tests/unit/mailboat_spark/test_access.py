"""Who a query is and how it connects: options, what workers make of them, no secret in sight."""

import pickle
from pathlib import Path

import pytest

from mailboat.client import ClientSecurity, ClientTls, Credentials
from mailboat.errors import ConfigError
from mailboat_spark.access import OPEN_ACCESS, AccessOptions
from mailboat_spark.client_thread import ClientThread
from mailboat_spark.job.command import read_options
from mailboat_spark.job.options import check_options
from mailboat_spark.options import SourceOptions, parse_options

NEEDED = {"namesrv": "10.0.0.1:9876", "subscribe": "orders"}
SIGNED = {"accessKey": "alice", "secretKey": "s3cret"}
TLS = {
    "tls.enable": "true",
    "tls.client.trustCertPath": "/tls/ca.pem",
    "tls.client.certPath": "/tls/tls.crt",
    "tls.client.keyPath": "/tls/tls.key",
    "tls.client.keyPassword": "p4ssword",
    "tls.client.authServer": "false",
}


def parsed(**given: str) -> SourceOptions:
    """Return checked options."""
    return parse_options({**NEEDED, **given}, "stream")


def test_nothing_said_is_open() -> None:
    """As before there were users."""
    assert parsed().access == OPEN_ACCESS
    assert OPEN_ACCESS.security() == ClientSecurity()


def test_all_options_reach_the_client_of_a_worker() -> None:
    """Spark pickles the options for each worker; names come in lower case."""
    given = {name.lower(): value for name, value in (SIGNED | TLS).items()}
    options = pickle.loads(pickle.dumps(parsed(**given)))
    assert options.access.security() == ClientSecurity(
        Credentials("alice", "s3cret"),
        ClientTls(
            trust_cert_path="/tls/ca.pem",
            cert_path="/tls/tls.crt",
            key_path="/tls/tls.key",
            key_password="p4ssword",
            auth_server=False,
        ),
    )


def test_no_secret_is_in_the_text_of_options() -> None:
    """Plans, logs and errors show objects by their text."""
    options = parsed(**SIGNED, **TLS)
    shown = f"{options!r} {options} {options.access!r} {options.access.security()!r}"
    assert "alice" in shown
    assert "s3cret" not in shown
    assert "p4ssword" not in shown


def test_the_file_of_a_secret_is_read_where_it_is_used(tmp_path: Path) -> None:
    """It need not be there where the options are checked."""
    path = tmp_path / "secret"
    access = parsed(accessKey="alice", secretKeyFile=str(path)).access
    with pytest.raises(ConfigError, match="cannot be read"):
        ClientThread("10.0.0.1:9876", access)
    path.write_text("s3cret\n")
    assert access.security().credentials == Credentials("alice", "s3cret")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"accessKey": "alice"}, "accessKey=alice: has no secret key"),
        ({"secretKey": "s3cret"}, "accessKey=: is required"),
        ({"secretKeyFile": "/x"}, "accessKey=: is required"),
        (SIGNED | {"secretKeyFile": "/x"}, "secretKeyFile=/x: and secretKey are both given"),
        ({"accessKey": "alice", "secretKey": " "}, "secretKey=<hidden>: is empty"),
        ({"tls.client.trustCertPath": "/x"}, "has no effect without tls.enable=true"),
        ({"tls.enable": "true", "tls.client.certPath": "/x"}, "needs both"),
        ({"tls.enable": "yes"}, "neither true nor false"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, str], sentence: str) -> None:
    """Nothing is left unsigned or plain in silence, and no secret is shown."""
    with pytest.raises(ConfigError) as caught:
        parsed(**given)
    assert sentence in str(caught.value)
    assert "s3cret" not in str(caught.value)


JOB = ["--namesrv", "ns:9876", "--topics", "a", "--output", "/data/t"]


def test_the_job_signs_and_connects_as_its_source() -> None:
    """The driver's client and the workers' have the same options."""
    words = ["--access-key", "alice", "--secret-key-file", "/s", "--tls", "true"]
    words += ["--tls-trust", "/ca", "--tls-cert", "/c", "--tls-key", "/k", "--tls-check", "false"]
    options = read_options([*JOB, *words])
    assert check_options(options).access == options.access
    assert options.access == AccessOptions(
        access_key="alice",
        secret_key_file="/s",
        tls=True,
        tls_trust_cert_path="/ca",
        tls_cert_path="/c",
        tls_key_path="/k",
        tls_auth_server=False,
    )
    assert read_options(JOB).access == OPEN_ACCESS


def test_the_job_names_its_own_options() -> None:
    """The source's option names are not the user's."""
    with pytest.raises(ConfigError, match=r"^--access-key=alice: has no secret key"):
        read_options([*JOB, "--access-key", "alice"])
