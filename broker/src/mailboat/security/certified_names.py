"""The user that a client's certificate names.

Only one place in it counts, the configured one, and only its whole value. A certificate that has
several values there, or none, names nobody: which of them was meant would be for its maker to
choose. Whether it is to be believed was decided by the handshake.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

Identity: TypeAlias = Literal["none", "CN", "DNS", "URI"]
"""Where the name stands: nowhere, in the subject, or among the alternative names."""

_COMMON_NAME: Final = "commonName"


def certified_name(certificate: Mapping[str, Any] | None, identity: str) -> str:
    """Return the name in a certificate, as `ssl.SSLObject.getpeercert` tells it; "" without one.

    Args:
        certificate: None where there was none; empty where it was not checked.
        identity: which `Identity` it has.
    """
    if not certificate or identity == "none":
        return ""
    if identity == "CN":
        parts = [part for rdn in certificate.get("subject", ()) for part in rdn]
        values = [value for kind, value in parts if kind == _COMMON_NAME]
    else:
        values = [
            value for kind, value in certificate.get("subjectAltName", ()) if kind == identity
        ]
    return str(values[0]) if len(values) == 1 else ""
