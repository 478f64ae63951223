"""Tests of mailboat.security.tls: contexts made of files, and what is said of bad ones."""

import dataclasses
import logging
import os
import shutil
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from certificates import Authority, Pair, encrypt_key
from real_time import at_most_s

from mailboat.config.tls import TlsConfig
from mailboat.errors import ConfigError
from mailboat.security import tls as tls_module
from mailboat.security.client_security import ClientTls
from mailboat.security.tls import ClientContexts, ServerTls, own_client_tls, peer_problem

DAY_S = 86_400


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Authority."""
    return Authority(tmp_path / "certificates")


def config_of(pair: Pair, **changes: object) -> TlsConfig:
    """Return the configuration of an enforcing server."""
    config = TlsConfig(
        server_mode="enforcing",
        server_cert_path=str(pair.certificate),
        server_key_path=str(pair.key),
    )
    return dataclasses.replace(config, **changes)


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a handshake in memory; return both ends."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    for _ in range(6):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting
    return ends


def replace_folder(link: Path, target: Path) -> None:
    """Swap a link to a folder as the kubelet does."""
    fresh = link.with_name("..fresh")
    fresh.symlink_to(target.name)
    fresh.rename(link)


# -- what is refused ---------------------------------------------------------------------------


def test_no_port_speaks_tls_by_default():
    """No port speaks TLS by default."""
    assert ServerTls.of(TlsConfig()) is None
    assert own_client_tls(TlsConfig()) is None


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"server_cert_path": ""}, "tls.server.certPath", "tls.server.mode=enforcing"),
        ({"server_key_path": ""}, "tls.server.keyPath", "tls.server.mode=enforcing"),
        (
            {"server_key_path": "", "server_mode": "disabled", "http_mode": "enforcing"},
            "tls.server.keyPath",
            "httpTlsMode=enforcing",
        ),
        ({"server_cert_path": "/nowhere.pem"}, "tls.server.certPath", "No such file"),
        ({"server_key_path": "/nowhere.pem"}, "tls.server.keyPath", "No such file"),
        (
            {"server_need_client_auth": "require"},
            "tls.server.trustCertPath",
            "tls.server.need.client.auth=require",
        ),
        (
            {"server_need_client_auth": "optional", "server_auth_client": False},
            "tls.server.authClient",
            "nobody checks",
        ),
        (
            {"server_need_client_auth": "optional", "server_trust_cert_path": "/nowhere.pem"},
            "tls.server.trustCertPath",
            "No such file",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(authority, changes, key, reason):
    """Settings that do not go together are named."""
    with pytest.raises(ConfigError, match=reason) as raised:
        ServerTls.of(config_of(authority.issue("localhost"), **changes))
    assert raised.value.key == key
    assert "\n" not in str(raised.value)


def test_key_of_another_certificate_is_refused(authority):
    """Key of another certificate is refused."""
    pair, other = authority.issue("localhost"), authority.issue("other", file="other")
    with pytest.raises(ConfigError, match="does not belong to the certificate") as raised:
        ServerTls(config_of(pair, server_key_path=str(other.key)))
    assert (raised.value.key, raised.value.value) == ("tls.server.keyPath", str(other.key))


@pytest.mark.parametrize(
    ("file", "content", "key", "reason"),
    [
        ("certificate", "words", "tls.server.certPath", "holds no certificate"),
        (
            "certificate",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
            "tls.server.certPath",
            "cannot be read",
        ),
        ("key", "words", "tls.server.keyPath", "holds no private key"),
        (
            "key",
            "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n",
            "tls.server.keyPath",
            "damaged",
        ),
    ],
)
def test_files_that_hold_something_else_are_named(authority, file, content, key, reason):
    """Files that hold something else are named."""
    pair = authority.issue("localhost")
    getattr(pair, file).write_text(content)
    with pytest.raises(ConfigError, match=reason) as raised:
        ServerTls(config_of(pair))
    assert raised.value.key == key


def test_encrypted_key_needs_its_password_and_nobody_is_asked(authority):
    """Encrypted key needs its password and nobody is asked."""
    pair = encrypt_key(authority.issue("localhost"), "open-sesame")
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match="another password") as raised:
            ServerTls(config_of(pair, server_key_password=password))
        assert "wrong" not in str(raised.value)
    tls = ServerTls(config_of(pair, server_key_password="open-sesame"))
    shake(tls.context, ClientContexts(ClientTls(str(authority.trust))).context)


def test_short_rsa_key_is_refused_in_words(tmp_path, authority):
    """Short rsa key is refused in words."""
    pair = Pair(tmp_path / "short.pem", tmp_path / "short.key")
    words = (
        f"req -x509 -newkey rsa:1024 -nodes -keyout {pair.key} -out {pair.certificate} -subj /CN=a"
    )
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    with pytest.raises(ConfigError, match="ee key too small"):
        ServerTls(config_of(pair))


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_client_needs_both_files_or_none(authority, missing):
    """Client needs both files or none."""
    pair = authority.issue("localhost")
    paths = {"cert_path": str(pair.certificate), "key_path": str(pair.key), f"{missing}_path": ""}
    with pytest.raises(ConfigError) as raised:
        ClientContexts(ClientTls(**paths))
    assert raised.value.key == f"tls.client.{missing}Path"


def test_client_names_the_file_that_it_cannot_trust(tmp_path):
    """Client names the file that it cannot trust."""
    (tmp_path / "trust.pem").write_text("words")
    for path, reason in (("/nowhere.pem", "No such file"), ("trust.pem", "holds no certificate")):
        with pytest.raises(ConfigError, match=reason) as raised:
            ClientContexts(ClientTls(trust_cert_path=str(tmp_path / path)))
        assert raised.value.key == "tls.client.trustCertPath"


# -- what is spoken ----------------------------------------------------------------------------


def test_nothing_before_tls_1_2_is_spoken(authority):
    """Nothing before TLS 1 2 is spoken."""
    tls = ServerTls(config_of(authority.issue("localhost")))
    client = ClientContexts(ClientTls(str(authority.trust)))
    for context in (tls.context, tls.http_context, client.context):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.options & ssl.OP_NO_COMPRESSION
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError) as raised:
        shake(tls.context, old)
    assert "refuses" in peer_problem(raised.value) or "failed" in peer_problem(raised.value)


def test_client_checks_trust_and_name_unless_told_not_to(authority, tmp_path):
    """Client checks trust and name unless told not to."""
    tls = ServerTls(config_of(authority.issue("broker.example", "127.0.0.1")))
    trusting = ClientContexts(ClientTls(str(authority.trust)))
    for name in ("broker.example", "127.0.0.1"):
        shake(tls.context, trusting.context, name)
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        shake(tls.context, trusting.context, "other.example")
    assert "another name" in peer_problem(raised.value)
    assert "other.example" in peer_problem(raised.value)
    foreign = Authority(tmp_path / "foreign")
    for trust in (str(foreign.trust), ""):
        with pytest.raises(ssl.SSLCertVerificationError) as raised:
            shake(tls.context, ClientContexts(ClientTls(trust)).context, "broker.example")
        assert "not trusted" in peer_problem(raised.value)
    shake(tls.context, ClientContexts(ClientTls(auth_server=False)).context, "other.example")


def test_certificates_of_version_1_are_trusted(authority):
    """RocketMQ's documentation makes such ones: no names but CN, no key identifiers."""
    pair = authority.issue_version_1("broker.example", file="old")
    tls = ServerTls(config_of(pair))
    shake(tls.context, ClientContexts(ClientTls(str(authority.trust))).context, "broker.example")


@pytest.mark.parametrize(
    ("valid_from_days", "valid_to_days", "reason"),
    [(-3, -1, "certificate has expired"), (1, 3, "certificate is not yet valid")],
)
def test_times_of_client_certificates_count(authority, valid_from_days, valid_to_days, reason):
    """Times of client certificates count."""
    shown = authority.issue(
        "client", file="client", valid_from_days=valid_from_days, valid_to_days=valid_to_days
    )
    tls = ServerTls(
        config_of(
            authority.issue("localhost"),
            server_need_client_auth="require",
            server_trust_cert_path=str(authority.trust),
        )
    )
    client = ClientTls(str(authority.trust), str(shown.certificate), str(shown.key))
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        shake(tls.context, ClientContexts(client).context)
    assert peer_problem(raised.value) == f"its certificate is not trusted: {reason}"


def test_http_asks_no_client_for_a_certificate(authority):
    """HTTP asks no client for a certificate."""
    tls = ServerTls(
        config_of(
            authority.issue("localhost"),
            server_need_client_auth="require",
            server_trust_cert_path=str(authority.trust),
        )
    )
    client = ClientContexts(ClientTls(str(authority.trust)))
    shake(tls.http_context, client.context)
    with pytest.raises(ssl.SSLError) as raised:
        shake(tls.context, client.context)
    assert peer_problem(raised.value) == "it shows no certificate, and has to"


def test_own_connections_follow_the_settings():
    """Own connections follow the settings."""
    config = TlsConfig(
        enable=True,
        client_trust_cert_path="t",
        client_cert_path="c",
        client_key_path="k",
        client_key_password="p",
        client_auth_server=False,
    )
    assert own_client_tls(config) == ClientTls("t", "c", "k", "p", auth_server=False)


# -- times -------------------------------------------------------------------------------------


def test_time_of_the_certificate_is_known(authority):
    """Time of the certificate is known."""
    tls = ServerTls(config_of(authority.issue("localhost", valid_to_days=5)))
    assert tls.validity is not None
    assert tls.validity.not_after_s == pytest.approx(time.time() + 5 * DAY_S, abs=60)
    assert tls.validity.not_before_s == pytest.approx(time.time() - DAY_S, abs=60)


def test_times_are_those_that_openssl_reads(authority):
    """Times are those that openssl reads."""
    pair = authority.issue_version_1("old", file="old")
    tls = ServerTls(config_of(pair))
    assert tls.validity is not None
    words = ["openssl", "x509", "-in", str(pair.certificate), "-noout", "-enddate"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert tls.validity.not_after_s == ssl.cert_time_to_seconds(said.strip().split("=", 1)[1])


@pytest.mark.parametrize(
    ("valid_from_days", "valid_to_days", "words"),
    [(-3, -1, "has expired"), (1, 3, "is not valid yet")],
)
def test_bad_time_at_start_is_a_warning(authority, caplog, valid_from_days, valid_to_days, words):
    """Bad time at start is a warning."""
    pair = authority.issue(
        "localhost", valid_from_days=valid_from_days, valid_to_days=valid_to_days
    )
    ServerTls(config_of(pair))
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert words in warnings[0].message
    assert str(pair.certificate) in warnings[0].message


# -- files that change -------------------------------------------------------------------------


def shown_by(tls: ServerTls) -> int:
    """Return the number of the certificate that a new connection is shown."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    end, _ = shake(tls.context, client)
    return hash(end.getpeercert(binary_form=True))


def test_new_pair_is_shown_after_a_look(authority):
    """New pair is shown after a look."""
    tls = ServerTls(config_of(authority.issue("localhost", valid_to_days=5)))
    before, context = shown_by(tls), tls.context
    tls.look()
    assert tls.context is context
    authority.issue("localhost", valid_to_days=50)
    tls.look()
    assert shown_by(tls) != before
    assert tls.validity is not None
    assert tls.validity.not_after_s > time.time() + 40 * DAY_S
    assert tls.problem == ""


def test_bad_pair_keeps_what_there_was_and_is_told_once(authority, caplog):
    """Bad pair keeps what there was and is told once."""
    pair = authority.issue("localhost", valid_to_days=5)
    tls = ServerTls(config_of(pair))
    before, key = shown_by(tls), pair.key.read_bytes()
    authority.issue("localhost", valid_to_days=50)
    new_key = pair.key.read_bytes()
    pair.key.write_bytes(key)
    for _ in range(3):
        tls.look()
        assert shown_by(tls) == before
    assert "does not belong to the certificate" in tls.problem
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
    pair.key.write_bytes(new_key)
    tls.look()
    assert shown_by(tls) != before
    assert tls.problem == ""


@pytest.mark.parametrize(
    ("valid_from_days", "valid_to_days", "words"),
    [(-9, -1, "has expired"), (1, 9, "is not valid yet")],
)
def test_a_certificate_out_of_its_time_replaces_none_in_its_own(
    authority, monkeypatch, valid_from_days, valid_to_days, words
):
    """Peers would refuse it; it counts once its time has come, or that of the other is over."""
    tls = ServerTls(config_of(authority.issue("localhost", valid_to_days=5)))
    before = shown_by(tls)
    authority.issue("localhost", valid_from_days=valid_from_days, valid_to_days=valid_to_days)
    for _ in range(2):
        tls.look()
        assert words in tls.problem
        assert shown_by(tls) == before
    later_s = time.time() + 6 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later_s)
    tls.look()
    assert tls.problem == ""
    assert shown_by(tls) != before


@pytest.mark.parametrize(
    ("mode", "asked", "lines"),
    [("permissive", "require", 1), ("permissive", "optional", 0), ("enforcing", "require", 0)],
)
def test_certificates_that_plain_clients_need_not_show_are_a_warning(
    authority, caplog, mode, asked, lines
):
    """Who asks for certificates may think that nobody comes in without."""
    ServerTls(
        config_of(
            authority.issue("localhost"),
            server_mode=mode,
            server_need_client_auth=asked,
            server_trust_cert_path=str(authority.trust),
        )
    )
    assert (
        len([line for line in caplog.messages if "asks nothing of who connects" in line]) == lines
    )


@pytest.mark.parametrize("name", ["certificate", "key", "trust"])
@pytest.mark.parametrize("instead", ["fifo", "folder", "huge"])
def test_what_is_no_file_of_tls_keeps_nobody_waiting(tmp_path, authority, name, instead):
    """Whatever lies in the place of a file: that is said, and what was there counts."""
    pair, trust = authority.issue("localhost"), tmp_path / "trust.pem"
    shutil.copy(authority.trust, trust)
    changes = {"server_need_client_auth": "optional", "server_trust_cert_path": str(trust)}
    server = ServerTls.of(config_of(pair, **changes))
    path = {"certificate": pair.certificate, "key": pair.key, "trust": trust}[name]
    before, kept, context = path.read_bytes(), path.with_suffix(".kept"), server.context
    path.rename(kept)
    if instead == "folder":
        path.mkdir()
    elif instead == "huge":
        path.write_bytes(before)
        os.truncate(path, 1 << 30)
    else:
        os.mkfifo(path)
        # Whoever waits for a writer gets one in the end.
        end = threading.Timer(15, lambda: os.close(os.open(path, os.O_RDWR)))
        end.start()
    begin_s = time.monotonic()
    server.look()
    assert time.monotonic() - begin_s < at_most_s(1, 12)
    assert "cannot be read: it " in server.problem
    assert server.context is context
    if instead == "fifo":
        end.cancel()
        end.join()
    if instead == "folder":
        path.rmdir()
    kept.rename(path)
    server.look()
    assert not server.problem


def test_files_that_vanish_and_come_back_are_no_end(authority):
    """Files that vanish and come back are no end."""
    pair = authority.issue("localhost")
    tls = ServerTls(config_of(pair))
    before = shown_by(tls)
    away = pair.certificate.with_suffix(".away")
    pair.certificate.rename(away)
    tls.look()
    assert "No such file" in tls.problem
    away.rename(pair.certificate)
    tls.look()
    assert (tls.problem, shown_by(tls)) == ("", before)


def mounted(tmp_path: Path, authority: Authority) -> tuple[Pair, Path]:
    """Return a pair as a Secret mounts it, and the link that is swapped."""
    mount, data = tmp_path / "mount", tmp_path / "mount" / "..data"
    mount.mkdir()
    write_state(mount / "..1", authority)
    data.symlink_to("..1")
    pair = Pair(mount / "tls.crt", mount / "tls.key")
    for path in pair:
        path.symlink_to(f"..data/{path.name}")
    return pair, data


def write_state(folder: Path, authority: Authority) -> None:
    """Write a new pair as it lies in one state of a mounted Secret."""
    folder.mkdir()
    issued = authority.issue("localhost", file=folder.name)
    shutil.copy(issued.certificate, folder / "tls.crt")
    shutil.copy(issued.key, folder / "tls.key")


def test_swap_of_a_mounted_folder_is_noticed(tmp_path, authority):
    """Swap of a mounted folder is noticed."""
    pair, data = mounted(tmp_path, authority)
    tls = ServerTls(config_of(pair))
    before = shown_by(tls)
    write_state(data.with_name("..2"), authority)
    for path in data.with_name("..2").iterdir():
        os.utime(path, ns=(0, 0))
    for path in data.with_name("..1").iterdir():
        os.utime(path, ns=(0, 0))
    replace_folder(data, data.with_name("..2"))
    tls.look()
    assert shown_by(tls) != before


def test_both_files_are_of_one_state(tmp_path, authority, monkeypatch):
    """A swap between the reading of the two files does not join halves of two states."""
    pair, data = mounted(tmp_path, authority)
    tls = ServerTls(config_of(pair))
    write_state(data.with_name("..2"), authority)
    write_state(data.with_name("..3"), authority)
    replace_folder(data, data.with_name("..2"))
    swaps = []
    read = tls_module.read_file_of_others

    def swap_then_read(path: str, max_bytes: int) -> bytes:
        if path.endswith("/tls.key") and not swaps:
            swaps.append(path)
            replace_folder(data, data.with_name("..3"))
            shutil.rmtree(data.with_name("..2"))
        return read(path, max_bytes)

    monkeypatch.setattr(tls_module, "read_file_of_others", swap_then_read)
    tls.look()
    assert swaps
    assert tls.problem == ""
    expected = ssl.PEM_cert_to_DER_cert(
        (data / "tls.crt").read_text().split("-----END CERTIFICATE-----")[0]
        + "-----END CERTIFICATE-----\n"
    )
    assert shown_by(tls) == hash(expected)


def test_authority_that_is_taken_away_is_trusted_no_more(tmp_path, authority):
    """Authority that is taken away is trusted no more."""
    former = Authority(tmp_path / "former")
    trust = tmp_path / "trust.pem"
    trust.write_bytes(former.trust.read_bytes() + authority.trust.read_bytes())
    tls = ServerTls(
        config_of(
            authority.issue("localhost"),
            server_need_client_auth="require",
            server_trust_cert_path=str(trust),
        )
    )
    shown = former.issue("client", file="client")
    client = ClientContexts(ClientTls(str(authority.trust), str(shown.certificate), str(shown.key)))
    shake(tls.context, client.context)
    trust.write_bytes(authority.trust.read_bytes())
    tls.look()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(tls.context, client.context)


def test_client_follows_new_trust(tmp_path, authority):
    """Client follows new trust."""
    trust = tmp_path / "trust.pem"
    trust.write_bytes(Authority(tmp_path / "former").trust.read_bytes())
    client = ClientContexts(ClientTls(str(trust)))
    tls = ServerTls(config_of(authority.issue("localhost")))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(tls.context, client.context)
    trust.write_bytes(authority.trust.read_bytes())
    client.look()
    shake(tls.context, client.context)
