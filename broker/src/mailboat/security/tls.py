"""TLS contexts made of PEM files, and made anew once the files have changed.

Certificates are replaced while servers run: Kubernetes swaps the folder behind a mounted Secret, a
script writes one file after the other. So files are used as they all were at one moment, and what
cannot be used leaves everything as it was.

How strict: TLS 1.2 at least, no renegotiation, no compression. Of a certificate that is checked,
chain, time and purpose count, in clients the name too. The demands of RFC 5280 on its form do not
(VERIFY_X509_STRICT, which Python 3.13 adds to its default context): what `openssl x509 -req` makes,
as RocketMQ's documentation tells, is of version 1 without key identifiers. What stands in a file of
trusted certificates is trusted, be it a root or not, as in Java. There is no revocation.
"""

import asyncio
import logging
import os
import re
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

from mailboat.config.listeners import ListenerConfig
from mailboat.config.tls import TlsConfig
from mailboat.disk.files_of_others import read_file_of_others
from mailboat.errors import ConfigError
from mailboat.security.certified_names import certified_name
from mailboat.security.client_security import ClientTls

_log: Final = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 5.0
"""How often it is looked whether files have changed."""

_CERTIFICATE: Final = re.compile(
    "-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)
# A folder that is swapped while files of it are read is read again.
_READINGS: Final = 3
# More than all authorities of a system have.
_FILE_MAX_BYTES: Final = 16 << 20
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
    "required": ssl.CERT_REQUIRED,
}
_SEQUENCE: Final = 0x30
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
# What a peer sends that speaks no TLS is taken for such a record.
_NOT_TLS: Final = frozenset(
    {
        "BAD_RECORD_TYPE",
        "HTTPS_PROXY_REQUEST",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "WRONG_VERSION_NUMBER",
    }
)
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_OTHER_NAME: Final = frozenset({62, 64})
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_OUT_OF_TIME: Final = frozenset({9, 10})


class Validity(NamedTuple):
    """When a certificate is valid, in seconds since 1970."""

    not_before_s: float
    not_after_s: float

    def holds_at(self, time_s: float) -> bool:
        """Tell whether it is valid at a time."""
        return self.not_before_s <= time_s <= self.not_after_s


class _Own(NamedTuple):
    """The keys of the settings with the own chain and private key, and that key's password."""

    certificate: str
    private_key: str
    password: str


class _Watched(ABC):
    """Contexts that are made of files."""

    def __init__(self, files: Mapping[str, str], own: _Own) -> None:
        """Read `files`, paths by the keys of their settings; without a path there is no file.

        Raises:
            ConfigError: one of them cannot be used.
        """
        self._files = {key: path for key, path in files.items() if path}
        self._own = own
        self._lock = threading.Lock()
        self._contexts: tuple[ssl.SSLContext, ...] = ()
        self.validity: Validity | None = None
        """Of the own certificate, None where there is none."""

        self.problem = ""
        """Why what the files are now is not used, empty while it is."""

        self._seen = self._read()

    def look(self) -> None:
        """Make the contexts anew where a file has changed; on any thread, and it may take long.

        Connections that there are stay as they are.
        """
        with self._lock:
            if not self.problem and self._state() == self._seen:
                return
            try:
                self._seen = self._read()
            except ConfigError as error:
                if self.problem != str(error):
                    _log.error("the files of TLS are used as they were before: %s", error)
                self.problem = str(error)
            else:
                self.problem = ""
                _log.info("the files of TLS were read again: %s", ", ".join(self._files.values()))

    def _state(self) -> tuple[object, ...]:
        """Return what differs once a file, or a folder that leads to it, is another one."""
        found: list[object] = []
        for path in self._files.values():
            real_path = os.path.realpath(path)
            try:
                stat = os.stat(real_path)
            except OSError as error:
                found.append((real_path, error.errno))
            else:
                found.append((real_path, stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def _read(self) -> tuple[object, ...]:
        """Make the contexts; return the state of the files of which they are made.

        Raises:
            ConfigError: a file cannot be used.
        """
        for _ in range(_READINGS):
            before = self._state()
            real = {key: os.path.realpath(path) for key, path in self._files.items()}
            try:
                validity = self._read_validity(real)
                self._check_time(validity)
                contexts = self._make(real)
            except ConfigError:
                if self._state() == before:
                    raise
                continue
            if self._state() == before:
                self._contexts, self.validity = contexts, validity
                self._warn_of_time()
                return before
        key, path = next(iter(self._files.items()))
        raise ConfigError(key, path, "changes while it is read")

    def _check_time(self, validity: Validity | None) -> None:
        """Refuse a certificate out of its time in the place of one that is in its own.

        Peers would refuse it. It is looked at again each time, so it counts once its time has come.

        Raises:
            ConfigError: it has expired, or is not valid yet.
        """
        now_s = time.time()
        if validity is None or self.validity is None or not self.validity.holds_at(now_s):
            return
        if not validity.holds_at(now_s):
            reason = "has expired" if now_s > validity.not_after_s else "is not valid yet"
            path = self._files[self._own.certificate]
            raise ConfigError(
                self._own.certificate, path, f"its certificate {reason}, and that of before holds"
            )

    @abstractmethod
    def _make(self, real: Mapping[str, str]) -> tuple[ssl.SSLContext, ...]:
        """Make the contexts of files, by the keys of their settings.

        Raises:
            ConfigError: a file cannot be used.
        """

    def _read_validity(self, real: Mapping[str, str]) -> Validity | None:
        for key, path in real.items():
            text = self._text(key, path)
            if key != self._own.private_key and not _CERTIFICATE.search(text):
                raise ConfigError(key, self._files[key], "holds no certificate in PEM format")
        own = real.get(self._own.certificate)
        if own is None:
            return None
        found = _CERTIFICATE.search(self._text(self._own.certificate, own))
        try:
            return _validity(ssl.PEM_cert_to_DER_cert("" if found is None else found.group()))
        except (ValueError, IndexError) as error:
            reason = f"its first certificate cannot be read: {error}"
            raise ConfigError(
                self._own.certificate, self._files[self._own.certificate], reason
            ) from error

    def _text(self, key: str, path: str) -> str:
        try:
            # Whoever waited for what is no file would never look again, nor end.
            content = read_file_of_others(path, _FILE_MAX_BYTES)
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(key, self._files[key], f"cannot be read: {text}") from error
        return content.decode("ascii", "replace")

    def _show(self, context: ssl.SSLContext, real: Mapping[str, str]) -> None:
        """Have a context show the own certificate.

        Raises:
            ConfigError: the files cannot be used.
        """
        own, files = self._own, self._files
        certificate, private_key = real[own.certificate], real[own.private_key]
        if "PRIVATE KEY-----" not in self._text(own.private_key, private_key):
            raise ConfigError(
                own.private_key, files[own.private_key], "holds no private key in PEM format"
            )
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate, private_key, password=lambda: own.password)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None)
            if reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(
                    own.private_key,
                    files[own.private_key],
                    f"does not belong to the certificate of {own.certificate}="
                    f"{files[own.certificate]}",
                ) from error
            if reason is not None:
                text = f"cannot be used: {reason.replace('_', ' ').lower()}"
                raise ConfigError(own.certificate, files[own.certificate], text) from error
            text = (
                "cannot be used: it or the certificate is damaged, or the key has another password"
            )
            raise ConfigError(own.private_key, files[own.private_key], text) from error

    def _trust(self, context: ssl.SSLContext, key: str, real: Mapping[str, str]) -> None:
        """Have a context trust what stands in the file of a setting.

        Raises:
            ConfigError: the file cannot be used.
        """
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(real[key])
        except OSError as error:
            text = f"cannot be used: {error.strerror or error}"
            raise ConfigError(key, self._files[key], text) from error

    def _warn_of_time(self) -> None:
        if self.validity is None:
            return
        path, now_s = self._files[self._own.certificate], time.time()
        if now_s > self.validity.not_after_s:
            _log.warning("the certificate in %s has expired: peers will refuse it", path)
        elif now_s < self.validity.not_before_s:
            _log.warning("the certificate in %s is not valid yet: peers will refuse it", path)


class ServerTls(_Watched):
    """What a server shows and asks for."""

    def __init__(self, config: TlsConfig, listeners: Sequence[ListenerConfig] = ()) -> None:
        """Read the files of the configuration.

        Args:
            config: what the server's ports speak, and the files.
            listeners: its further ports.

        Raises:
            ConfigError: a file is missing or cannot be used, or settings do not go together.
        """
        asking = [one for one in listeners if one.client_auth != "none"]
        _check_server(config, next((one for one in listeners if one.speaks_tls), None))
        _check_client_auth(config, asking[0] if asking else None)
        self.mode = config.server_mode
        """What the remoting ports speak, see `TlsConfig.server_mode`."""

        self._identity = config.server_client_identity
        self._client_auth = _CLIENT_AUTH[config.server_need_client_auth]
        # HTTP asks for one only where it says who a client is: probes and browsers have none.
        self._http_auth = ssl.CERT_NONE if self._identity == "none" else ssl.CERT_OPTIONAL
        auths = {self._client_auth, self._http_auth}
        self._auths = tuple(sorted(auths | {_CLIENT_AUTH[one.client_auth] for one in listeners}))
        files = {
            "tls.server.certPath": config.server_cert_path,
            "tls.server.keyPath": config.server_key_path,
        }
        if self._auths != (ssl.CERT_NONE,):
            files["tls.server.trustCertPath"] = config.server_trust_cert_path
        own = _Own("tls.server.certPath", "tls.server.keyPath", config.server_key_password)
        super().__init__(files, own)
        self._warn_of_plain(config, listeners)

    @classmethod
    def of(cls, config: TlsConfig, listeners: Sequence[ListenerConfig] = ()) -> Self | None:
        """Return what the configuration asks for, None where no port of the server speaks TLS.

        Raises:
            ConfigError: as the constructor.
        """
        is_asked = any(one.speaks_tls for one in listeners)
        if config.server_mode == config.http_mode == "disabled" and not is_asked:
            return None
        return cls(config, listeners)

    @property
    def context(self) -> ssl.SSLContext:
        """For the next handshake of a remoting port."""
        return self._context(self._client_auth)

    @property
    def http_context(self) -> ssl.SSLContext:
        """For the next handshake of HTTP, where no client has to show a certificate."""
        return self._context(self._http_auth)

    def certified_name(self, transport: asyncio.BaseTransport | None) -> str:
        """Return the user that the certificate at the other end of a connection names, or ""."""
        if transport is None or self._identity == "none":
            return ""
        return certified_name(transport.get_extra_info("peercert"), self._identity)

    def listener_context(self, listener: ListenerConfig) -> ssl.SSLContext:
        """For the next handshake of one of the listeners."""
        return self._context(_CLIENT_AUTH[listener.client_auth])

    def _warn_of_plain(self, config: TlsConfig, listeners: Sequence[ListenerConfig]) -> None:
        """Warn where certificates are asked for and plain clients need show none."""
        asking = [f"listener {one.name}" for one in listeners if _lets_plain_in(one)]
        if config.server_mode == "permissive" and self._client_auth == ssl.CERT_REQUIRED:
            asking.append("tls.server.need.client.auth=require")
        for what in asking:
            _log.warning(
                "%s asks nothing of who connects plainly, which permissive lets in: set enforcing "
                "once all clients speak TLS",
                what,
            )

    def _context(self, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
        return self._contexts[self._auths.index(client_auth)]

    def _make(self, real: Mapping[str, str]) -> tuple[ssl.SSLContext, ...]:
        contexts = []
        for client_auth in self._auths:
            context = _server_context()
            self._show(context, real)
            if client_auth != ssl.CERT_NONE:
                context.verify_mode = client_auth
                self._trust(context, "tls.server.trustCertPath", real)
            contexts.append(context)
        return tuple(contexts)


class ClientContexts(_Watched):
    """What a side that connects trusts and shows."""

    def __init__(self, tls: ClientTls) -> None:
        """Read the files, or what the system trusts; that may take 0.1 s.

        Raises:
            ConfigError: a file is missing or cannot be used.
        """
        if bool(tls.cert_path) != bool(tls.key_path):
            missing = "key" if tls.cert_path else "cert"
            other = "cert" if tls.cert_path else "key"
            raise ConfigError(
                f"tls.client.{missing}Path", "", f"must be set with tls.client.{other}Path"
            )
        self._authenticates = tls.auth_server
        files = {
            "tls.client.certPath": tls.cert_path,
            "tls.client.keyPath": tls.key_path,
        }
        if tls.auth_server:
            files["tls.client.trustCertPath"] = tls.trust_cert_path
        self.server_name = tls.server_name
        """The name that is checked, empty for the host that is connected to."""

        own = _Own("tls.client.certPath", "tls.client.keyPath", tls.key_password)
        super().__init__(files, own)

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self._contexts[0]

    def _make(self, real: Mapping[str, str]) -> tuple[ssl.SSLContext, ...]:
        context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        if not self._authenticates:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif "tls.client.trustCertPath" in real:
            self._trust(context, "tls.client.trustCertPath", real)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self._own.certificate in real:
            self._show(context, real)
        return (context,)


def own_client_tls(config: TlsConfig) -> ClientTls | None:
    """Return how a server makes its own connections, None for plain ones."""
    if not config.enable:
        return None
    return ClientTls(
        trust_cert_path=config.client_trust_cert_path,
        cert_path=config.client_cert_path,
        key_path=config.client_key_path,
        key_password=config.client_key_password,
        auth_server=config.client_auth_server,
    )


def tls_to_itself(config: TlsConfig) -> ClientTls | None:
    """Return how a process connects to a port of its own, None where it may do so plainly.

    Nobody else can be there, so nothing is checked; where clients have to show a certificate, one
    is shown.
    """
    if config.server_mode != "enforcing":
        return None
    shown = config.client_cert_path, config.client_key_path, config.client_key_password
    if not config.client_cert_path and config.server_need_client_auth != "none":
        shown = config.server_cert_path, config.server_key_path, config.server_key_password
    return ClientTls("", *shown, auth_server=False)


def is_other_name(error: ssl.SSLCertVerificationError) -> bool:
    """Tell whether a certificate is good, but that of somebody else."""
    return error.verify_code in _OTHER_NAME


def is_out_of_time(error: ssl.SSLCertVerificationError) -> bool:
    """Tell whether a certificate has expired or is not valid yet, by the clock of this side."""
    return error.verify_code in _OUT_OF_TIME


def peer_problem(error: OSError) -> str:
    """Say in a few words why a handshake with a peer, or a connection after it, has failed."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message.rstrip(".")
        if is_other_name(error):
            return f"its certificate has another name: {what}"
        return f"its certificate is not trusted: {what}"
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return "it does not speak TLS"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate, and has to"
    if reason.endswith("ALERT_CERTIFICATE_REQUIRED"):
        return "it asks for a certificate (tls.client.certPath)"
    _, alert, what = reason.partition("ALERT_")
    if alert:
        return f"it refuses this side by TLS: {what.replace('_', ' ').lower()}"
    return f"TLS failed: {reason.replace('_', ' ').lower() or error}"


def _lets_plain_in(listener: ListenerConfig) -> bool:
    return listener.tls == "permissive" and listener.client_auth == "required"


def _check_server(config: TlsConfig, listener: ListenerConfig | None) -> None:
    """Refuse a server that has nothing to show.

    Args:
        config: of the server.
        listener: one that speaks TLS.

    Raises:
        ConfigError: names the setting that is missing, and what asks for it.
    """
    asks = f"tls.server.mode={config.server_mode}"
    if config.server_mode == "disabled":
        asks = f"httpTlsMode={config.http_mode}"
        if config.http_mode == "disabled" and listener is not None:
            asks = f"tls={listener.tls} of listener {listener.name}"
    for key, path in (
        ("tls.server.certPath", config.server_cert_path),
        ("tls.server.keyPath", config.server_key_path),
    ):
        if not path:
            raise ConfigError(key, "", f"must be set with {asks}")


def _check_client_auth(config: TlsConfig, listener: ListenerConfig | None) -> None:
    """Refuse a server that asks for certificates and would take any.

    Args:
        config: of the server.
        listener: one that asks for certificates.

    Raises:
        ConfigError: names the setting, and what asks for another one.
    """
    if config.server_client_identity != "none":
        asks = f"tls.server.clientIdentity={config.server_client_identity}"
    elif config.server_need_client_auth != "none":
        asks = f"tls.server.need.client.auth={config.server_need_client_auth}"
    elif listener is not None:
        asks = f"clientAuth={listener.client_auth} of listener {listener.name}"
    else:
        return
    if not config.server_auth_client:
        raise ConfigError(
            "tls.server.authClient",
            "false",
            f"is not possible with {asks}: a certificate that nobody checks says nothing",
        )
    if not config.server_trust_cert_path:
        raise ConfigError("tls.server.trustCertPath", "", f"must be set with {asks}")


def _server_context() -> ssl.SSLContext:
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    # Connections last for hours: nobody takes a session up again.
    context.num_tickets = 0
    return context


def _hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _validity(der: bytes) -> Validity:
    """Find two times in Certificate{TBSCertificate{[0] version OPTIONAL, serialNumber, signature,
    issuer, Validity{notBefore, notAfter}}} of RFC 5280, 4.1.

    Raises:
        ValueError, IndexError: it is none.
    """
    position = _enter(der, _enter(der, 0))
    if der[position] == _EXPLICIT_VERSION:
        position = _behind(der, position)
    for _ in range(3):
        position = _behind(der, position)
    not_before = _enter(der, position)
    not_after = _behind(der, not_before)
    return Validity(_time_s(der, not_before), _time_s(der, not_after))


def _enter(der: bytes, position: int) -> int:
    """Return where the content of a sequence begins."""
    if der[position] != _SEQUENCE:
        raise ValueError("no sequence where one should be")
    return _content(der, position)[0]


def _behind(der: bytes, position: int) -> int:
    """Return where the next element begins."""
    begin, size = _content(der, position)
    return begin + size


def _content(der: bytes, position: int) -> tuple[int, int]:
    """Return where the content of an element begins and its size."""
    size = der[position + 1]
    if size < 0x80:
        return position + 2, size
    begin = position + 2 + (size & 0x7F)
    return begin, int.from_bytes(der[position + 2 : begin], "big")


def _time_s(der: bytes, position: int) -> float:
    begin, size = _content(der, position)
    text = der[begin : begin + size].decode("ascii")
    if der[position] == _UTC_TIME:
        # RFC 5280, 4.1.2.5.1: years from 50 on are of the last century.
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
