"""Signatures of requests: what is signed, and with what.

The content is the value of every ext field but the signature itself, fields in the order of their
names, and the body behind them. Neither code nor opaque nor time is part of it, so a signature says
who made these fields, not when nor what for: only TLS keeps others from sending them again.

A request says who signed it in `AccessKey`; the signature is HMAC-SHA1 in base64, in `Signature`.

Source: apache/rocketmq acl/common/AclUtils.java (combineRequestContent), AclSigner.java and
AclClientRPCHook.java @ rocketmq-all-5.3.3, and acl/plain/PlainAccessResource.java of 4.9.8
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Final

from mailboat.protocol.command import RemotingCommand
from mailboat.security.client_security import Credentials

ACCESS_KEY_FIELD: Final = "AccessKey"
"""Ext field with the name of whoever signed."""

SIGNATURE_FIELD: Final = "Signature"
"""Ext field with the signature, the only one that is not signed."""

TEMPORARY_FIELD: Final = "SecurityToken"
"""Ext field with the token of temporary credentials; it is signed as any other."""

SIGNER_FIELDS: Final = frozenset({ACCESS_KEY_FIELD, SIGNATURE_FIELD, TEMPORARY_FIELD})
"""Ext fields that say who signed."""

UNIQUE_KEY_QUERY_FIELD: Final = "_UNIQUE_KEY_QUERY"
"""Ext field of QUERY_MESSAGE that clients up to 4.9.3 add behind their signature."""

_LAST_WITH_LATE_FIELD: Final = 399  # MQVersion.V4_9_3
_ALGORITHM: Final = "sha1"
# Java writes what UTF-8 has no form for as a question mark; JSON may hold half a surrogate pair.
_UNENCODABLE: Final = "replace"


def access_key_of(command: RemotingCommand) -> str:
    """Return who a request says has signed it, "" where it names nobody.

    Whoever carries a request out goes by its `asked_by`: others than signers may have asked.
    """
    return command.ext_fields.get(ACCESS_KEY_FIELD, "")


def content(fields: Mapping[str, str], body: bytes) -> bytes:
    """Return what a signature over ext fields and body is made of."""
    values = [fields[name] for name in sorted(fields) if name != SIGNATURE_FIELD]
    return "".join(values).encode(errors=_UNENCODABLE) + body


def signature(secret: bytes, signed: bytes) -> str:
    """Return the signature of a content."""
    return b64encode(hmac.digest(secret, signed, _ALGORITHM)).decode()


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Sign a request, in place: its ext fields have to be complete.

    What was signed before, by whomever, is signed anew.
    """
    fields = dict(command.ext_fields)
    fields.pop(SIGNATURE_FIELD, None)
    fields[ACCESS_KEY_FIELD] = credentials.access_key
    if credentials.security_token:
        fields[TEMPORARY_FIELD] = credentials.security_token
    signed = fields
    if command.version <= _LAST_WITH_LATE_FIELD and UNIQUE_KEY_QUERY_FIELD in fields:
        signed = _without_late_field(fields)
    made = signature(credentials.secret_key.encode(), content(signed, command.body))
    fields[SIGNATURE_FIELD] = made
    # A new table: the caller's may be shared by several requests.
    command.ext_fields = fields


def is_signed_by(command: RemotingCommand, secrets: Iterable[bytes]) -> bool:
    """Tell whether a request was signed with one of these secrets.

    `_UNIQUE_KEY_QUERY` may be signed or not: clients up to 4.9.3 add it too late, later ones sign
    it, and it changes only which index is asked.
    """
    fields = command.ext_fields
    shown = fields.get(SIGNATURE_FIELD)
    if not shown:
        return False
    # compare_digest takes text of ASCII only.
    received = shown.encode(errors=_UNENCODABLE)
    contents = [content(fields, command.body)]
    # Queries have no body: strangers get no long one looked through twice.
    if UNIQUE_KEY_QUERY_FIELD in fields and not command.body:
        contents.append(content(_without_late_field(fields), command.body))
    for secret in secrets:
        for signed in contents:
            made = b64encode(hmac.digest(secret, signed, _ALGORITHM))
            if hmac.compare_digest(made, received):
                return True
    return False


def _without_late_field(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY_FIELD}
