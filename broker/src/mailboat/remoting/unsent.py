"""What of a connection the peer has not taken yet, in this process or in the system.

At the end of a connection of which something was not read Linux sends a reset, and drops what it
has not sent, whatever SO_LINGER says.
"""

import asyncio
import fcntl
import struct
import termios
from typing import Final

_COUNT: Final = struct.Struct("i")


def has_unsent(transport: asyncio.Transport) -> bool:
    """Tell whether there is something that the peer's system has not acknowledged."""
    if transport.get_write_buffer_size():
        return True
    accepted = transport.get_extra_info("socket")
    if accepted is None or accepted.fileno() < 0:
        return False
    try:
        found = fcntl.ioctl(accepted.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size))
    except OSError:
        return False  # No system of ours, or no connection any more.
    return bool(_COUNT.unpack(found)[0])
