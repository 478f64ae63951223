"""Bodies of 3001-3010: users and their rules.

What is in them is text as it came: `mailboat.security` knows what it means.

Source: apache/rocketmq remoting/protocol/body/{UserInfo,AclInfo}.java @ rocketmq-all-5.3.3
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from mailboat.protocol.bodies import decode_request, encode_body


class UserInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """One user; a field that is not there is to stay as it is. Answers have no password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        """Show no secret."""
        return f"UserInfo({self.username!r})"


class PolicyEntryInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """One rule."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """Rules of one type."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """All rules of one user; the subject is `User:` and its name."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


_user: Final = msgspec.json.Decoder(UserInfo)
_acl: Final = msgspec.json.Decoder(AclInfo)


def decode_user_info(body: bytes) -> UserInfo:
    """Read the body of 3001 and 3002.

    Raises:
        RemoteProtocolError: the body is not one; the text shows no value of it.
    """
    return decode_request(body, _user)


def decode_acl_info(body: bytes) -> AclInfo:
    """Read the body of 3006 and 3007.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    return decode_request(body, _acl)


def encode_user_info(user: UserInfo) -> bytes:
    """Write the answer of 3004."""
    return encode_body(user)


def encode_user_list(users: Sequence[UserInfo]) -> bytes:
    """Write the answer of 3005."""
    return encode_body(users)


def encode_acl_info(acl: AclInfo) -> bytes:
    """Write the answer of 3009."""
    return encode_body(acl)


def encode_acl_list(acls: Sequence[AclInfo]) -> bytes:
    """Write the answer of 3010."""
    return encode_body(acls)
