"""The one error tree of mailboat.

    MailboatError                         `retriable` says whether the same call may succeed later
      ConfigError                         a setting is wrong (exit code 3)
      IllegalMessageError                 a message or a name breaks a limit; nothing is sent
        FilterSyntaxError                 a filter expression is wrong
      IllegalUserError                    a user, or a rule of one, is wrong; nothing has changed
      StoreError                          the store cannot do what was asked
        CorruptRecordError                bytes that fail their checks
        DamagedStoreError                 the directory cannot be opened as it is (exit code 4)
        StoreClosedError                  closed, or closing
        StorePoisonedError                an earlier flush or write failed; read-only until reopened
        DiskFullError                     no room; heals by itself
        StoreBusyError                    another process holds the directory
      ProtocolError                       bytes that are not the remoting protocol
        LocalProtocolError                our side asked for something impossible
        RemoteProtocolError               the peer sent something impossible
      BrokerError                         a peer answered with a response code other than success
      RemotingError                       no answer, so the outcome is unknown
        ConnectError, RequestTimeoutError, ConnectionLostError
        PeerBusyError                     not even sent: the peer leaves too much as it is
      UnknownOutcomeError                 messages may or may not be stored (exit code 5)
      PartlyDoneError                     one of several brokers failed, after others had done it
      RouteNotFoundError                  no name server knows the topic
      NoWritableQueueError                the route holds no queue that takes messages

Expected outcomes (nothing to pull, a flush that timed out) are values, not exceptions.
"""

from typing import ClassVar


class MailboatError(Exception):
    """Root of every error that mailboat raises on purpose; its text is one sentence for people."""

    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigError(MailboatError):
    """A configuration key or value is wrong."""

    exit_code: ClassVar[int] = 3

    def __init__(self, key: str, value: str, reason: str) -> None:
        """Name the key, the value as it was given, and what to do about it."""
        super().__init__(f"{key}={value}: {reason}")
        self.key = key
        self.value = value
        self.reason = reason


class IllegalMessageError(MailboatError):
    """A message, topic or group breaks a limit of the protocol; nothing was sent or stored."""


class FilterSyntaxError(IllegalMessageError):
    """A filter expression is wrong; the text says where and why."""


class IllegalUserError(MailboatError):
    """A user or one of its rules is wrong; nothing has changed."""


class StoreError(MailboatError):
    """The store cannot do what was asked."""


class CorruptRecordError(StoreError):
    """Bytes in the store fail their checks."""

    def __init__(self, path: str, physical_offset: int, reason: str) -> None:
        """Name the file, the CommitLog byte and the check that failed."""
        super().__init__(f"{path}: record at physical offset {physical_offset}: {reason}")
        self.path = path
        self.physical_offset = physical_offset
        self.reason = reason


class DamagedStoreError(StoreError):
    """A store directory cannot be opened as it is; the text names the file and the remedy."""

    exit_code: ClassVar[int] = 4


class StoreClosedError(StoreError):
    """The store is closed or closing."""


class StorePoisonedError(StoreError):
    """A write or a flush failed earlier: the store is read-only until it is reopened."""


class DiskFullError(StoreError):
    """There is no room for the bytes; the same call may succeed once there is."""

    retriable: ClassVar[bool] = True


class StoreBusyError(StoreError):
    """Another process holds the store directory."""


class ProtocolError(MailboatError):
    """Bytes are not the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """Our own side asked for something that the protocol cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not the protocol; close the connection."""


class BrokerError(MailboatError):
    """A broker or name server answered with a response code other than success."""

    def __init__(self, code: int, remark: str) -> None:
        """Keep the response code (see `mailboat.protocol.codes.ResponseCode`) and the remark."""
        super().__init__(f"CODE: {code}  DESC: {remark}")
        self.code = code
        self.remark = remark


class PlaceTakenError(BrokerError):
    """A name server refuses a registration: another broker that lives has the name and the id."""

    def __init__(self, code: int, remark: str, held_by: str) -> None:
        """Keep the address of the other one too."""
        super().__init__(code, remark)
        self.held_by = held_by


class RemotingError(MailboatError):
    """There was no answer, so the outcome of the call is unknown."""

    retriable: ClassVar[bool] = True


class ConnectError(RemotingError):
    """The address could not be connected to."""


class RequestTimeoutError(RemotingError):
    """No answer arrived in time."""


class ConnectionLostError(RemotingError):
    """The connection closed before the answer arrived."""


class PeerBusyError(RemotingError):
    """The peer reads or answers too little of what it was sent before; nothing was sent."""


class UnknownOutcomeError(MailboatError):
    """Messages may or may not be stored, or less safely than the broker was set to.

    Commands that send end with it: sending again what its text names may store it twice.
    """

    exit_code: ClassVar[int] = 5


class PartlyDoneError(MailboatError):
    """A change that several brokers had to make was made by some of them only."""

    def __init__(self, cause: MailboatError, done: str) -> None:
        """Keep what went wrong, and the words that say what was done before and what was not."""
        super().__init__(f"{cause}; {done}")
        self.cause = cause
        self.done = done


class RouteNotFoundError(MailboatError):
    """No name server knows a route for the topic."""

    retriable: ClassVar[bool] = True


class NoWritableQueueError(MailboatError):
    """The topic's route holds no queue that takes messages."""

    retriable: ClassVar[bool] = True
