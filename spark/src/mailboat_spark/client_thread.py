"""The asyncio client behind Spark's blocking calls: one event loop in a thread of its own.

Spark reuses a worker process for many tasks, so the thread and its connections live as long as the
process and are shared by all readers of the same name servers with the same access. Spark also
forks workers: what was made before a fork belongs to the parent, so the table is keyed by process
id.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from mailboat.client import ClientSecurity
from mailboat_spark.access import OPEN_ACCESS, AccessOptions
from mailboat_spark.broker_client import BrokerClient

_Result = TypeVar("_Result")

_lock = threading.Lock()
_threads: Final[dict[tuple[int, str, AccessOptions], "ClientThread"]] = {}


class ClientThread:
    """Runs coroutines of one `BrokerClient` for callers that are not asynchronous."""

    def __init__(self, namesrv: str, access: AccessOptions = OPEN_ACCESS) -> None:
        """Start the thread and the client; nothing is connected yet.

        Raises:
            ConfigError: `namesrv` is not a list of addresses, or a file that `access` names cannot
                be read here.
        """
        security = access.security()
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, BrokerClient]] = Future()
        # A daemon: Spark ends its workers without telling them.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(_live(namesrv, security, started)),
            name="mailboat client",
            daemon=True,
        )
        self._thread.start()
        self._loop, self._stopped, self.client = started.result()

    def submit(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start `work` on the loop; the future gives its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` on the loop and wait for its result."""
        return self.submit(work).result()

    def close(self) -> None:
        """Close the connections and end the thread; what still runs is cancelled."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()


def shared_client(namesrv: str, access: AccessOptions = OPEN_ACCESS) -> ClientThread:
    """Return this process's client of some name servers, made at the first call.

    Files that `access` names are read then: another secret in one counts from the next process on.

    Raises:
        ConfigError: as for `ClientThread`.
    """
    key = (os.getpid(), namesrv, access)
    with _lock:
        thread = _threads.get(key)
        if thread is None:
            thread = _threads[key] = ClientThread(namesrv, access)
        return thread


def close_shared_clients() -> None:
    """Close every client of this process."""
    with _lock:
        own = [key for key in _threads if key[0] == os.getpid()]
        for key in own:
            _threads.pop(key).close()


async def _live(
    namesrv: str,
    security: ClientSecurity,
    started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, BrokerClient]]",
) -> None:
    """Open a client, hand it over through `started`, and close it when the event is set."""
    stopped = asyncio.Event()
    try:
        client = BrokerClient(namesrv, security)
        await client.start()
    except Exception as exc:
        # Whatever it is, the caller waits for it and raises it.
        started.set_exception(exc)
        return
    started.set_result((asyncio.get_running_loop(), stopped, client))
    await stopped.wait()
    await client.close()
