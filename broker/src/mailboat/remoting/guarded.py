"""A `Dispatcher` whose requests all pass a guard."""

from typing import Final

from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, answer_error, encode_answer
from mailboat.security.guard import Guard
from mailboat.security.users import User


class GuardedDispatcher(Dispatcher):
    """Carries out what a guard allows; what it refuses has no effect."""

    def __init__(self, guard: Guard) -> None:
        """Start without processors."""
        super().__init__()
        self._guard: Final = guard

    def process(self, connection: Connection, command: RemotingCommand) -> bytes | None:
        """Do as `Dispatcher.process`, if the guard allows it."""
        try:
            user = check(self._guard, self, connection, command)
            self._admit(user, connection, command)
        except Exception as error:
            # As processors do; whatever goes wrong, it is not carried out.
            return encode_answer(command, answer_error(command, error))
        return super().process(connection, command)

    def _admit(self, user: User, connection: Connection, command: RemotingCommand) -> None:
        """Keep a user, whose request is allowed, within its quotas: here there are none.

        Raises:
            BrokerError: the request is not to be carried out.
        """


def check(
    guard: Guard, dispatcher: Dispatcher, connection: Connection, command: RemotingCommand
) -> User:
    """Have a request judged; one that nobody answers needs a valid signature to be told so.

    Returns:
        Who signed it.

    Raises:
        BrokerError: NO_PERMISSION.
    """
    address, certified_as = connection.peer_address, connection.certified_as
    if command.code in dispatcher.codes:
        return guard.check(command, address, certified_as)
    return guard.authenticate(command, address, certified_as)
