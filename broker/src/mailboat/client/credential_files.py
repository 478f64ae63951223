"""Credentials in files: a secret alone, as Kubernetes mounts it, or RocketMQ's `tools.yml`.

Source: apache/rocketmq acl/common/AclUtils.java (getAclRPCHook), distribution/conf/tools.yml.
"""

import re
from pathlib import Path
from typing import Final

from mailboat.errors import ConfigError
from mailboat.security.client_security import Credentials

_MOST_BYTES: Final = 64 * 1024
_VALUE: Final = r"""(?:"([^"\\]*)"|'([^']*)'|([^\s"'#&*!|>%@`{\[].*?))"""
_ENTRY: Final = re.compile(rf"([A-Za-z]\w*):\s+{_VALUE}(?:\s+#.*)?\s*", re.ASCII)


def read_secret(path: Path) -> str:
    """Return the secret key that is all of a file; spaces and line ends around it do not count.

    Raises:
        ConfigError: the file cannot be read, or holds no text, or more than one line.
    """
    secret = _read(path).strip()
    if not secret or not secret.isprintable():
        raise ConfigError("secret key file", str(path), "must hold one secret key and nothing else")
    return secret


def read_tools_file(path: Path) -> Credentials:
    """Return what a `tools.yml` says: lines `accessKey: ...` and `secretKey: ...`.

    Values may stand in quotes. Other keys are left alone, as mqadmin leaves them.

    Raises:
        ConfigError: the file cannot be read, or one of the two is missing.
    """
    found: dict[str, str] = {}
    for line in _read(path).splitlines():
        if (entry := _ENTRY.fullmatch(line)) is not None:
            name, *values = entry.groups()
            found[name] = next(value for value in values if value is not None)
    for name in ("accessKey", "secretKey"):
        if not found.get(name):
            raise ConfigError("ACL file", str(path), f"has no line '{name}: ...'; see tools.yml")
    return Credentials(found["accessKey"], found["secretKey"])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError("credentials", str(path), f"has more than {_MOST_BYTES} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "is no UTF-8 text"
        raise ConfigError("credentials", str(path), f"cannot be read: {reason}") from error
