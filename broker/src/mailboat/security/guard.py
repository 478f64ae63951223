"""Decides about each request: who signed it, and whether that user may do it.

Every request is judged by itself; nothing is remembered of a connection, so a change of users or
rules takes effect with the next request. What the directory holds is decoded once for each change.

To a peer, a user that is not there, one that is disabled and a signature that does not fit look the
same, and take the same time. The log and the audit log have the truth.

Source of the answers: apache/rocketmq auth/authentication/chain/DefaultAuthenticationHandler.java
and auth/authorization/chain/AclAuthorizationHandler.java @ rocketmq-all-5.3.3
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mailboat.config.security import SecurityConfig
from mailboat.errors import BrokerError, ConfigError
from mailboat.protocol.codes import ResponseCode, request_code_name
from mailboat.protocol.command import RemotingCommand
from mailboat.security.access import Need
from mailboat.security.audit import AuditLog, shown
from mailboat.security.needs import AUDITED_CODES, Needs, Row, needs_of
from mailboat.security.signing import SIGNER_FIELDS, access_key_of, is_signed_by
from mailboat.security.users import User, UserDirectory

_log: Final = logging.getLogger(__name__)

NOBODY: Final = "username cannot be null."
"""Remark for a request without AccessKey."""

NOT_AUTHENTICATED: Final = "Authentication failed. Please verify the credentials and try again."
"""Remark for a user that is unknown or disabled, and for a signature that does not fit."""

NO_CONTEXT: Final = "authorization context is empty."
"""Remark for a request that has no row."""

FREE_FAILURES: Final = 20
"""Failures in a row, of one user from one address, after which signatures are not looked at for a
while."""

PAUSE_MAX_S: Final = 1.0
"""Longest pause. A good signature between them ends the row: one client with an old key must not
shut out others behind the same address for long."""

_FIRST_PAUSE_S: Final = 0.05
_ROW_ENDS_S: Final = 60.0
_ROWS_MAX: Final = 4_096
_UNKNOWN: Final = ""  # Stands for all users that are not there: no access key is empty.
# What unknown users are checked against, so that they take as long as known ones.
_NO_SECRETS: Final = (b"\x00",)

# Lines about refusals in the log: one in a minute for each address and user.
_LINE_EVERY_S: Final = 60.0
_LINES_MAX: Final = 1_024


@dataclass(slots=True)
class _Row:
    """Failures of one user from one address, one after the other."""

    failures: int = 0
    last_s: float = 0.0
    paused_until_s: float = 0.0


class BackOff:
    """Who has failed too often lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Count by a clock that gives seconds."""
        self._clock = clock
        self._rows: OrderedDict[tuple[str, str], _Row] = OrderedDict()

    def is_paused(self, address: str, user: str) -> bool:
        """Tell whether signatures of a user from an address are not looked at now."""
        row = self._rows.get((address, user))
        return row is not None and row.paused_until_s > self._clock()

    def failed(self, address: str, user: str) -> None:
        """Count a failure."""
        now_s = self._clock()
        key = (address, user)
        row = self._rows.pop(key, None)
        if row is None or now_s - row.last_s > _ROW_ENDS_S:
            row = _Row()
        if len(self._rows) >= _ROWS_MAX:
            self._rows.popitem(last=False)
        self._rows[key] = row
        row.failures += 1
        row.last_s = now_s
        beyond = row.failures - FREE_FAILURES
        if beyond > 0:
            row.paused_until_s = now_s + min(_FIRST_PAUSE_S * 2.0 ** min(beyond, 10), PAUSE_MAX_S)

    def succeeded(self, address: str, user: str) -> None:
        """Forget the failures of a user from an address."""
        if self._rows:
            self._rows.pop((address, user), None)


class Guard:
    """The guard of one server."""

    def __init__(
        self,
        users: UserDirectory,
        rows: Mapping[int, Row],
        *,
        authorizes: bool,
        audit: AuditLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guard what a server answers.

        Args:
            users: who there is.
            rows: what requests need, by their codes; one without a row is refused.
            authorizes: whether users need rules, and not a valid signature alone.
            audit: gets refusals and administrative requests.
            clock: seconds that never go back.
        """
        self.users = users
        self._rows = rows
        self._authorizes = authorizes
        self._audit = audit
        self._clock = clock
        self._back_off = BackOff(clock)
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}

    def check(self, command: RemotingCommand, address: str, certified_as: str = "") -> User:
        """Return the user that may have a request carried out, whose name it has from then on.

        Args:
            command: the request, whole: what is carried out has to be this very command.
            address: where it came from, "ip".
            certified_as: the user whose certificate the peer has shown, "" without one.

        Raises:
            BrokerError: NO_PERMISSION; nothing of the request may be done.
        """
        user = self.authenticate(command, address, certified_as)
        if self._authorizes:
            self._authorize(user, command, address)
        if command.code in AUDITED_CODES:
            self._audit.note(
                "allowed", address=address, user=user.name, request=request_code_name(command.code)
            )
        return user

    def authenticate(self, command: RemotingCommand, address: str, certified_as: str = "") -> User:
        """Return the user that signed a request, or whose certificate came before an unsigned one.

        Whoever carries the request out finds the name in it, as `asked_by`.

        Raises:
            BrokerError: NO_PERMISSION; nobody did who may do anything here.
        """
        if certified_as and SIGNER_FIELDS.isdisjoint(command.ext_fields):
            user = self._certified(command, address, certified_as)
        else:
            user = self._signer(command, address)
        command.asked_by = user.name
        return user

    def _signer(self, command: RemotingCommand, address: str) -> User:
        name = access_key_of(command)
        if not name:
            raise self._refused(command.code, address, "", "no access key", NOBODY)
        user = self.users.get(name)
        counted_as = _UNKNOWN if user is None else name
        if self._back_off.is_paused(address, counted_as):
            raise self._refused(command.code, address, name, "too many failures", NOT_AUTHENTICATED)
        is_signed = is_signed_by(command, _NO_SECRETS if user is None else user.secrets)
        if user is None or not is_signed or not user.is_enabled:
            self._back_off.failed(address, counted_as)
            if user is None:
                reason = "unknown user"
            else:
                reason = "disabled user" if is_signed else "bad signature"
            raise self._refused(command.code, address, name, reason, NOT_AUTHENTICATED)
        self._back_off.succeeded(address, name)
        return user

    def _certified(self, command: RemotingCommand, address: str, name: str) -> User:
        user = self.users.get(name)
        if user is not None and user.is_enabled:
            return user
        reason = "unknown user" if user is None else "disabled user"
        raise self._refused(command.code, address, name, reason, NOT_AUTHENTICATED)

    def allow(self, access_key: str, needs: Needs, code: int, address: str) -> None:
        """Judge again what was allowed before, such as a request that has waited since.

        Raises:
            BrokerError: NO_PERMISSION, it would not be allowed now.
        """
        user = self.users.get(access_key)
        if user is None or not user.is_enabled:
            reason = "unknown user" if user is None else "disabled user"
            raise self._refused(code, address, access_key, reason, NOT_AUTHENTICATED)
        if self.is_bound(user):
            self._judge(user, needs, code, address)

    def is_bound(self, user: User) -> bool:
        """Tell whether rules say what a user may do."""
        return self._authorizes and not user.is_super

    @property
    def audit(self) -> AuditLog:
        """What refusals are written to."""
        return self._audit

    def close(self) -> None:
        """Write what the audit log still has to be told."""
        self._audit.close()

    def _authorize(self, user: User, command: RemotingCommand, address: str) -> None:
        code = command.code
        row = self._rows.get(code)
        if row is None:
            raise self._refused(code, address, user.name, "no row", NO_CONTEXT)
        if user.is_super:
            return
        try:
            needs = needs_of(row, command)
        except BrokerError as error:
            raise self._refused(code, address, user.name, "unreadable", error.remark) from error
        self._judge(user, needs, code, address)

    def _judge(self, user: User, needs: Needs, code: int, address: str) -> None:
        refusal = user.rules.refusal
        source_ip = address.strip("[]")  # Peers of IPv6 have them.
        for need in needs:
            reason = refusal(need, source_ip)
            if reason is not None:
                raise self._not_permitted(user, need, reason, code, address)

    def _not_permitted(
        self, user: User, need: Need, reason: str, code: int, address: str
    ) -> BrokerError:
        resource = f"{need.kind.value}:{need.name}"
        remark = (
            f"User:{user.name} has no permission to access {resource} from {address}, {reason}."
        )
        actions = "|".join(sorted(action.value for action in need.actions))
        return self._refused(code, address, user.name, f"no {actions} of {resource}", remark)

    def _refused(self, code: int, address: str, user: str, reason: str, remark: str) -> BrokerError:
        """Note a refusal; return what the peer is told."""
        self._audit.note(
            "refused", address=address, user=user, request=request_code_name(code), reason=reason
        )
        self._log_refusal(code, address, user, reason)
        return BrokerError(ResponseCode.NO_PERMISSION, remark)

    def _log_refusal(self, code: int, address: str, user: str, reason: str) -> None:
        now_s = self._clock()
        # Whoever makes up names gets no line for each.
        key = (address, user if self.users.get(user) is not None else _UNKNOWN)
        last_s, left_out = self._lines.get(key, (-_LINE_EVERY_S, 0))
        if now_s - last_s < _LINE_EVERY_S:
            self._lines[key] = (last_s, left_out + 1)
            return
        if len(self._lines) >= _LINES_MAX:
            self._lines.clear()
        self._lines[key] = (now_s, 0)
        _log.warning(
            "request refused request=%s address=%s user=%s suppressed=%d: %s",
            request_code_name(code),
            address,
            shown(user),
            left_out,
            shown(reason),
        )


def make_guard(
    config: SecurityConfig, users: UserDirectory | None, rows: Mapping[int, Row]
) -> Guard | None:
    """Make the guard of a server; None where nobody is asked who it is.

    Raises:
        ConfigError: requests are to be authenticated and there are no users, or the audit log
            cannot be written.
    """
    if not config.is_guarded:
        return None
    if users is None:
        key = "authenticationEnabled" if config.authentication_enabled else "aclEnable"
        raise ConfigError(key, "true", "there are no users to authenticate")
    audit = AuditLog(config.audit_log_path)
    return Guard(users, rows, authorizes=config.needs_rules, audit=audit)
