"""Settings of authentication and authorisation, of brokers and name servers alike.

Source: apache/rocketmq auth/config/AuthConfig.java @ rocketmq-all-5.3.3, and acl/plain of 4.9.8.
"""

import re
from dataclasses import dataclass
from typing import Final

from mailboat.config.fields import setting

# The characters of a bearer token (RFC 6750, b64token). A short one can be guessed.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
_TOKEN_MIN: Final = 16
_TOKEN_MAX: Final = 1024


def check_token(text: str) -> str | None:
    """Refuse what is no bearer token; an empty text is none at all."""
    if not text or (_TOKEN_MIN <= len(text) <= _TOKEN_MAX and _TOKEN.fullmatch(text)):
        return None
    return f"must be {_TOKEN_MIN} to {_TOKEN_MAX} letters, digits or -._~+/ with = at the end"


def _check_not_empty(text: str) -> str | None:
    return None if text else "must not be empty"


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Who has to say who it is, and who may do what."""

    authentication_enabled: bool = setting(False)
    """Whether every request has to be signed by a user. Default false."""

    authorization_enabled: bool = setting(False)
    """Whether a user needs a rule for what it does; needs authenticationEnabled. Default false."""

    init_authentication_user: str = setting("", is_secret=True)
    """A Super user that is made where it is absent, as JSON: {"username": "…", "password": "…"}.
    Default: none."""

    inner_client_authentication_credentials: str = setting("", is_secret=True)
    """What this server signs its own requests with, as JSON: {"accessKey": "…", "secretKey": "…"};
    that user is a Super one here. Default: none."""

    auth_users_path: str = setting("")
    """Folder with one JSON file for each user, such as a mounted Secret; read again when a file
    changes. Default: none. Ours."""

    acl_enable: bool = setting(False)
    """Whether the accounts of plain_acl.yml are users and every request has to be signed (ACL 1.0).
    Default false."""

    plain_acl_file: str = setting("")
    """The plain_acl.yml of aclEnable; RocketMQ: conf/plain_acl.yml below its home. Ours."""

    audit_log_path: str = setting("")
    """File for one JSON line about each refusal and each administrative request. Default: none,
    refusals are in the log. Ours."""

    http_token_file: str = setting("")
    """File with the bearer tokens that may do everything over HTTP, one in a line, read again when
    it changes. With one HTTP is locked even without authenticationEnabled. Default: none. Ours."""

    http_token: str = setting("", check=check_token, is_secret=True)
    """One more such token; the environment variable MAILBOAT_TOKEN sets it. Default: none. Ours."""

    http_metrics_open: bool = setting(False)
    """Whether /metrics needs no token even with authenticationEnabled. Default false. Ours."""

    http_token_review: bool = setting(False)
    """Whether a bearer token that is none of those is shown to the API server of Kubernetes
    (TokenReview): the ServiceAccount dashboard of the namespace shop is the user
    system.serviceaccount.shop.dashboard. Needs authenticationEnabled. Default false. Ours."""

    http_token_review_audience: str = setting("mailboat", check=_check_not_empty)
    """For whom such a token has to be made. Default mailboat. Ours."""

    kube_api_folder: str = setting("/var/run/secrets/mailboat/kube-api")
    """Folder with `token` and `ca.crt`, with which the API server of Kubernetes is asked, and with
    `namespace` where it is asked for a Lease. Default /var/run/secrets/mailboat/kube-api. Ours."""

    @property
    def is_guarded(self) -> bool:
        """Whether every request has to be signed."""
        return self.authentication_enabled or self.acl_enable

    @property
    def needs_rules(self) -> bool:
        """Whether users need rules for what they do."""
        return self.authorization_enabled or self.acl_enable

    @property
    def is_http_locked(self) -> bool:
        """Whether HTTP requests have to say who they are of."""
        return self.is_guarded or bool(self.http_token_file or self.http_token)
