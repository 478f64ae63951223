"""How a query proves to servers who it is, and how it connects to them.

These are the options as they were given. Spark sends them to every worker, so files are named here
and read where they are used: on the driver and on every executor.
"""

from dataclasses import dataclass, field
from pathlib import Path

from mailboat.client import ClientSecurity, ClientTls, Credentials
from mailboat.client.credential_files import read_secret
from mailboat.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The options of signatures and TLS; picklable, and no secret is in its text."""

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    secret_key_file: str = ""
    tls: bool = False
    tls_trust_cert_path: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    tls_key_password: str = field(default="", repr=False)
    tls_auth_server: bool = True

    def check(self) -> None:
        """Refuse what does not go together.

        Raises:
            ConfigError: the text names the option, and no secret.
        """
        has_secret = bool(self.secret_key or self.secret_key_file)
        if self.secret_key and self.secret_key_file:
            reason = "and secretKey are both given; remove one"
            raise ConfigError("secretKeyFile", self.secret_key_file, reason)
        if self.access_key and not has_secret:
            reason = "has no secret key; give secretKeyFile, or secretKey"
            raise ConfigError("accessKey", self.access_key, reason)
        if has_secret and not self.access_key:
            raise ConfigError("accessKey", "", "is required beside a secret key, or nobody signs")
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            reason = "needs both tls.client.certPath and tls.client.keyPath"
            raise ConfigError("tls.client.certPath", self.tls_cert_path, reason)
        for name, value in (
            ("tls.client.trustCertPath", self.tls_trust_cert_path),
            ("tls.client.certPath", self.tls_cert_path),
        ):
            if value and not self.tls:
                raise ConfigError(name, value, "has no effect without tls.enable=true")

    def security(self) -> ClientSecurity:
        """Return what clients take; reads the file of the secret key.

        Raises:
            ConfigError: the file cannot be read here, or holds no secret key.
        """
        credentials = None
        if self.access_key:
            secret = self.secret_key or read_secret(Path(self.secret_key_file))
            credentials = Credentials(self.access_key, secret)
        return ClientSecurity(credentials, self._tls() if self.tls else None)

    def _tls(self) -> ClientTls:
        return ClientTls(
            trust_cert_path=self.tls_trust_cert_path,
            cert_path=self.tls_cert_path,
            key_path=self.tls_key_path,
            key_password=self.tls_key_password,
            auth_server=self.tls_auth_server,
        )


OPEN_ACCESS = AccessOptions()
"""Neither signature nor TLS."""
