"""Users and their rules, asked about and changed.

    3001 AUTH_CREATE_USER  3002 AUTH_UPDATE_USER  3003 AUTH_DELETE_USER
    3004 AUTH_GET_USER     3005 AUTH_LIST_USER
    3006 AUTH_CREATE_ACL   3007 AUTH_UPDATE_ACL   3008 AUTH_DELETE_ACL
    3009 AUTH_GET_ACL      3010 AUTH_LIST_ACL
    50-54                  plain_acl.yml, which is changed as a file

A change counts once it is durable. Who asks is whom the guard has found to have asked. A broker
that asks nobody who they are keeps no users, and says so with the code of a RocketMQ that has none.
54 would tell all passwords to who asks, and has no answer in later releases of RocketMQ either.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java @ rocketmq-all-5.3.3 and 4.9.8
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError, IllegalUserError
from mailboat.model.printable import printable
from mailboat.protocol.auth_bodies import (
    AclInfo,
    UserInfo,
    decode_acl_info,
    decode_user_info,
    encode_acl_info,
    encode_acl_list,
    encode_user_info,
    encode_user_list,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, optional_str, required_str
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Processor
from mailboat.security import user_changes
from mailboat.security.directory import Directory
from mailboat.security.user_changes import Users
from mailboat.security.user_records import UserRecord

_log = logging.getLogger(__name__)

ANSWER_MAX_BYTES: Final = 8 * 1024 * 1024
"""Longest list of users or rules."""

_NO_ACCESS_CONTROL: Final = (
    "access control is not configured: this broker keeps no users and no access rules"
)
_PLAIN_ACL: Final = "accounts and addresses are not changed by requests: plain_acl.yml has them"

# Numbers that mean something else in version 5, whose tools do not send these requests.
_VERSION_4_FAILURES: Final[dict[int, int]] = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: 209,
    RequestCode.DELETE_ACL_CONFIG: 210,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: 211,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: ResponseCode.SYSTEM_ERROR,
}


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    directory = controller.directory
    reason = _NO_ACCESS_CONTROL if directory is None else _PLAIN_ACL
    for code, answer in _VERSION_4_FAILURES.items():
        dispatcher.register(code, _refusal(reason, answer))
    if directory is None:
        for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1):
            dispatcher.register(code, _refusal(reason, ResponseCode.SYSTEM_ERROR))
        return
    processor = AuthAdminProcessor(directory)
    dispatcher.register(RequestCode.AUTH_CREATE_USER, processor.create_user)
    dispatcher.register(RequestCode.AUTH_UPDATE_USER, processor.update_user)
    dispatcher.register(RequestCode.AUTH_DELETE_USER, processor.delete_user)
    dispatcher.register(RequestCode.AUTH_GET_USER, processor.get_user)
    dispatcher.register(RequestCode.AUTH_LIST_USER, processor.list_users)
    dispatcher.register(RequestCode.AUTH_CREATE_ACL, processor.update_acl)
    dispatcher.register(RequestCode.AUTH_UPDATE_ACL, processor.update_acl)
    dispatcher.register(RequestCode.AUTH_DELETE_ACL, processor.delete_acl)
    dispatcher.register(RequestCode.AUTH_GET_ACL, processor.get_acl)
    dispatcher.register(RequestCode.AUTH_LIST_ACL, processor.list_acls)


def _refusal(reason: str, code: int) -> Processor:
    def refuse(_connection: Connection, _command: RemotingCommand) -> RemotingCommand:
        raise BrokerError(code, reason)

    return refuse


class AuthAdminProcessor:
    """Shows and changes users and their rules.

    Bodies are read, rules decoded and files written in a thread: all of it takes long where there
    are many.
    """

    def __init__(self, directory: Directory) -> None:
        """Work on the users of `directory`."""
        self._directory = directory
        self._turn = asyncio.Lock()

    async def create_user(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Make a user."""
        name = optional_str(command, "username") or ""

        def create(users: Users, by_super: bool) -> UserRecord:
            info = _user_info(command)
            return user_changes.create_user(users, name, info, by_super=by_super)

        return await self._change(command, create)

    async def update_user(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Change a user's password, type or status."""
        name = optional_str(command, "username") or ""

        def update(users: Users, by_super: bool) -> UserRecord:
            info = _user_info(command)
            return user_changes.update_user(users, name, info, by_super=by_super)

        return await self._change(command, update)

    async def delete_user(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Remove a user and its rules; one that is not there is no error."""
        name = optional_str(command, "username") or ""

        def check(users: Users, by_super: bool) -> None:
            user_changes.check_deletable(users, name, by_super=by_super)

        return await self._change(command, check, deleted=name)

    def get_user(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return a user without its password; no body where there is none."""
        name = optional_str(command, "username") or ""
        if not name.strip():
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        record = self._directory.records.get(name)
        body = b"" if record is None else encode_user_info(user_changes.user_info(record))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def list_users(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the users whose names have a text in them, without their passwords."""
        name_filter = optional_str(command, "filter") or ""
        users = self._users()
        return await _listed(
            command, lambda: encode_user_list(user_changes.user_infos(users, name_filter))
        )

    async def update_acl(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Give a user rules, in place of those that it has about the same resources."""
        subject = optional_str(command, "subject") or ""

        def update(users: Users, by_super: bool) -> UserRecord:
            info = decode_acl_info(command.body) if command.body else AclInfo()
            return user_changes.update_acl(users, subject, info, by_super=by_super)

        return await self._change(command, update)

    async def delete_acl(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Take rules away from a user."""
        subject = required_str(command, "subject")
        policy_type = optional_str(command, "policyType") or ""
        resource = optional_str(command, "resource") or ""

        def delete(users: Users, by_super: bool) -> UserRecord:
            return user_changes.delete_acl(users, subject, policy_type, resource, by_super=by_super)

        return await self._change(command, delete)

    async def get_acl(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the rules of a user; no body where there are none."""
        subject = required_str(command, "subject")
        users = self._users()

        def encode() -> bytes:
            info = user_changes.acl_info(users, subject)
            return b"" if info is None else encode_acl_info(info)

        return await _listed(command, encode)

    async def list_acls(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the rules about resources with a text in them, of users with one in them."""
        subject_filter = optional_str(command, "subjectFilter") or ""
        resource_filter = optional_str(command, "resourceFilter") or ""
        users = self._users()
        return await _listed(
            command,
            lambda: encode_acl_list(user_changes.acl_infos(users, subject_filter, resource_filter)),
        )

    def _users(self) -> Users:
        return Users(self._directory.records, self._directory.made)

    async def _change(
        self,
        command: RemotingCommand,
        change: Callable[[Users, bool], UserRecord | None],
        *,
        deleted: str = "",
    ) -> RemotingCommand:
        """Make a change durable and let it count."""
        asker = command.asked_by
        # Whoever gives up waiting must not leave a file that says more than what counts.
        task = asyncio.get_running_loop().create_task(
            self._change_in_turn(asker, change, deleted), context=Context()
        )
        name = await asyncio.shield(task)
        _log.info(
            "user changed user=%s request=%d by=%s", printable(name), command.code, printable(asker)
        )
        return command.response(ResponseCode.SUCCESS)

    async def _change_in_turn(
        self, asker: str, change: Callable[[Users, bool], UserRecord | None], deleted: str
    ) -> str:
        directory = self._directory
        async with self._turn:
            user = directory.get(asker)
            by_super = user is not None and user.is_super and user.is_enabled
            users = self._users()

            def save() -> tuple[str, dict[str, UserRecord]]:
                record = change(users, by_super)
                # Also those that do not count because a file has the name: they are kept.
                made = directory.kept()
                if record is None:
                    made.pop(deleted, None)
                else:
                    made[record.name] = record
                directory.save(made)
                return deleted if record is None else record.name, made

            try:
                name, made = await asyncio.to_thread(save)
            except IllegalUserError as error:
                raise BrokerError(ResponseCode.NO_PERMISSION, str(error)) from None
            except OSError as error:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR, f"the users cannot be saved: {error.strerror}"
                ) from error
            directory.put(made)
        return name


def _user_info(command: RemotingCommand) -> UserInfo:
    return decode_user_info(command.body) if command.body else UserInfo()


async def _listed(command: RemotingCommand, encode: Callable[[], bytes]) -> RemotingCommand:
    body = await asyncio.to_thread(encode)
    if len(body) > ANSWER_MAX_BYTES:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"the answer would have {len(body)} bytes: ask for fewer users or resources",
        )
    return command.response(ResponseCode.SUCCESS, body=body)
