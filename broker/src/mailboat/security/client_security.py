"""What one side that connects has: credentials to sign with, and how it uses TLS."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Credentials:
    """What requests are signed with (RocketMQ's SessionCredentials)."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How to connect by TLS; keys in RocketMQ's spelling are `tls.client.*`.

    Unlike RocketMQ's client ours checks by default that the certificate is trusted and has the name
    of the server.
    """

    trust_cert_path: str = ""
    """PEM file of the authorities to trust (`tls.client.trustCertPath`); empty: the system's."""

    cert_path: str = ""
    """PEM file with the own chain (`tls.client.certPath`); empty: none is shown."""

    key_path: str = ""
    """PEM file of the own private key (`tls.client.keyPath`)."""

    key_password: str = field(default="", repr=False)
    """`tls.client.keyPassword`."""

    auth_server: bool = True
    """Whether the server's certificate and name are checked (`tls.client.authServer`)."""

    server_name: str = ""
    """The name that the server's certificate has to have; empty: the host that is connected to."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Everything that makes a connection to a guarded server possible."""

    credentials: Credentials | None = None
    tls: ClientTls | None = None


OPEN: Final = ClientSecurity()
"""Neither signature nor TLS, as for servers without guard."""
