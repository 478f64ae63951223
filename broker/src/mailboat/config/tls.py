"""Settings of TLS, of brokers and name servers alike.

Source: apache/rocketmq remoting/netty/TlsSystemConfig.java @ rocketmq-all-5.3.3. There they are
system properties and a file of their own; here they are settings as all others.
"""

from dataclasses import dataclass

from mailboat.config.fields import setting


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificates and what is asked of peers."""

    server_mode: str = setting(
        "disabled", key="tls.server.mode", choices=("disabled", "permissive", "enforcing")
    )
    """What the remoting ports speak: disabled (plain only), permissive (both, told apart by the
    first byte) or enforcing (TLS only). Default disabled (RocketMQ: permissive with a certificate
    that it signs itself)."""

    server_cert_path: str = setting("", key="tls.server.certPath")
    """PEM file with the server's certificate chain. Default: none."""

    server_key_path: str = setting("", key="tls.server.keyPath")
    """PEM file with its private key. Default: none."""

    server_key_password: str = setting("", key="tls.server.keyPassword", is_secret=True)
    """Password of that key. Default: none."""

    server_need_client_auth: str = setting(
        "none", key="tls.server.need.client.auth", choices=("none", "optional", "require")
    )
    """Whether clients show a certificate: none, optional, or require. Default none."""

    server_trust_cert_path: str = setting("", key="tls.server.trustCertPath")
    """PEM file with the authorities whose client certificates are trusted. Default: none."""

    server_auth_client: bool = setting(True, key="tls.server.authClient")
    """Whether a client's certificate is checked against those. Default true (RocketMQ: false, where
    any certificate passes)."""

    server_client_identity: str = setting(
        "none", key="tls.server.clientIdentity", choices=("none", "CN", "DNS", "URI")
    )
    """What of a client's certificate, which was checked, is the name of a user whose requests need
    no signature then: the common name, or the one alternative name that is a host or a URI. HTTP
    asks for certificates too. Needs authenticationEnabled. Default none. Ours."""

    http_mode: str = setting("disabled", key="httpTlsMode", choices=("disabled", "enforcing"))
    """Whether HTTP is served by TLS, with the server's certificate. Default disabled. Ours."""

    enable: bool = setting(False, key="tls.enable")
    """Whether this server's own connections (to name servers, brokers and replicas) use TLS.
    Default false."""

    client_trust_cert_path: str = setting("", key="tls.client.trustCertPath")
    """PEM file of the authorities to trust in own connections. Default: those of the system."""

    client_cert_path: str = setting("", key="tls.client.certPath")
    """PEM file with the chain shown in own connections. Default: none."""

    client_key_path: str = setting("", key="tls.client.keyPath")
    """PEM file with its private key. Default: none."""

    client_key_password: str = setting("", key="tls.client.keyPassword", is_secret=True)
    """Password of that key. Default: none."""

    client_auth_server: bool = setting(True, key="tls.client.authServer")
    """Whether certificate and name of the server are checked in own connections. Default true
    (RocketMQ: false)."""
