"""The users that settings name: the first Super user, and this server itself.

Source: apache/rocketmq auth/authentication/factory/AuthenticationFactory.java and
auth/authentication/provider/LocalAuthenticationMetadataProvider.java @ rocketmq-all-5.3.3
"""

import dataclasses
import secrets
from typing import Final, TypeVar

import msgspec

from mailboat.config.fields import HIDDEN
from mailboat.config.security import SecurityConfig
from mailboat.errors import ConfigError, IllegalUserError
from mailboat.security.client_security import Credentials
from mailboat.security.user_records import UserRecord, check_name, check_password

INITIAL_KEY: Final = "initAuthenticationUser"
INNER_KEY: Final = "innerClientAuthenticationCredentials"

_T = TypeVar("_T")


class _InitialUser(msgspec.Struct, forbid_unknown_fields=True):
    username: str
    password: str


class _InnerCredentials(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    access_key: str
    secret_key: str


_initial_decoder: Final = msgspec.json.Decoder(_InitialUser)
_inner_decoder: Final = msgspec.json.Decoder(_InnerCredentials)


def initial_user(config: SecurityConfig) -> UserRecord | None:
    """Return the Super user that is made where it is absent.

    Raises:
        ConfigError: the setting is wrong.
    """
    text = config.init_authentication_user
    if not text:
        return None
    user = _decode(_initial_decoder, text, INITIAL_KEY)
    return _checked(user.username, user.password, INITIAL_KEY)


def inner_credentials(config: SecurityConfig) -> Credentials | None:
    """Return what this server signs its own requests with.

    Raises:
        ConfigError: the setting is wrong.
    """
    text = config.inner_client_authentication_credentials
    if not text:
        return None
    found = _decode(_inner_decoder, text, INNER_KEY)
    _checked(found.access_key, found.secret_key, INNER_KEY)
    return Credentials(found.access_key, found.secret_key)


def with_inner_user(config: SecurityConfig) -> SecurityConfig:
    """Return a configuration in which this server has a user of its own for its requests.

    For a process that asks only itself: the secret is new with each start.
    """
    if not config.is_guarded or config.inner_client_authentication_credentials:
        return config
    made = _InnerCredentials(f"inner-{secrets.token_hex(8)}", secrets.token_urlsafe(32))
    text = msgspec.json.encode(made).decode()
    return dataclasses.replace(config, inner_client_authentication_credentials=text)


def inner_user(config: SecurityConfig) -> UserRecord | None:
    """Return the Super user that this server and those with the same credentials are.

    Raises:
        ConfigError: the setting is wrong.
    """
    credentials = inner_credentials(config)
    if credentials is None:
        return None
    return UserRecord(credentials.access_key, credentials.secret_key, is_super=True)


def _decode(decoder: msgspec.json.Decoder[_T], text: str, key: str) -> _T:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(key, HIDDEN, f"is not such a JSON text: {error}") from None


def _checked(name: str, password: str, key: str) -> UserRecord:
    try:
        check_name(name)
        check_password(password)
    except IllegalUserError as error:
        raise ConfigError(key, HIDDEN, str(error)) from None
    return UserRecord(name, password, is_super=True)
