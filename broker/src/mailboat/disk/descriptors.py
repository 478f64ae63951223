"""File descriptors of this process: how many there may be, and what to say when there are none."""

import errno
import logging
import resource

_log = logging.getLogger(__name__)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return what it is then.

    A soft limit of 1,024 is there for programs that use `select`; the hard one is what the machine
    grants.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as exc:
            _log.warning("the limit of open files stays at %d of %d: %s", soft, hard, exc)
        else:
            return hard
    return soft


def descriptor_limit() -> int | None:
    """Return how many files this process may have open, None for any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def reason_of(error: OSError) -> str:
    """Say why a call failed, and for descriptors also what to do."""
    if error.errno == errno.EMFILE:
        return (
            f"all {descriptor_limit()} file descriptors of the process are in use; raise its limit "
            "of open files (ulimit -n, LimitNOFILE)"
        )
    if error.errno == errno.ENFILE:
        return "all file descriptors of the machine are in use; raise fs.file-max"
    return error.strerror or str(error)
