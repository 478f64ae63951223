"""Links to the other replicas of a group: the higher ordinal of two connects to the lower.

A slave begins with what `haMasterAddress` or its name servers say; each link tells more addresses,
which are kept. Where two links lead to one replica, the newer one counts.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from mailboat.broker.replicas.link import Link
from mailboat.replication.frames import Frame
from mailboat.replication.wire import Message, Open

_log: Final = logging.getLogger(__name__)

_CONNECT_EVERY_S: Final = 1.0
_CONNECT_TIMEOUT_S: Final = 3.0
# Every side says something once a second.
_SILENT_S: Final = 5.0
_LINKS_MAX: Final = 32
# Addresses that name servers have said: each master that there was has had one.
_HEARD_MAX: Final = 8


class PeerHandler(Protocol):
    """Gets what arrives from replicas of the same group."""

    def received(self, link: Link, message: Message) -> None:
        """Take a frame."""

    def roomy(self, link: Link) -> None:
        """Send on what waited for the other side to read."""

    def lost(self, link: Link) -> None:
        """Forget a link."""


class Peers:
    """All links of one replica."""

    def __init__(
        self,
        handler: PeerHandler,
        make_open: Callable[[], Open],
        addresses: Iterable[str],
        known: dict[int, str],
    ) -> None:
        """Connect to `addresses`, and to those `known` by ordinal, which grow."""
        self._handler = handler
        self._make_open = make_open
        self._seeds = list(addresses)
        self._heard: deque[str] = deque(maxlen=_HEARD_MAX)
        self._known = known
        self._links: set[Link] = set()
        self._by_ordinal: dict[int, Link] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._not_ours: set[str] = set()
        self._next_try_s = 0.0
        self._is_closing = False
        self._complaints: dict[str, str] = {}
        self.port = 0
        """Where other replicas connect."""

    async def listen(self, host: str, port: int) -> None:
        """Accept links.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self, is_ours=False), host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all links and accept none."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for task in list(self._connecting.values()):
            task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting.values())
        self.close_all("this replica ends")

    def close_all(self, reason: str) -> None:
        """End all links; they are made again."""
        for link in list(self._links):
            link.close(reason)

    def link_to(self, ordinal: int) -> Link | None:
        """Return the link to a replica."""
        return self._by_ordinal.get(ordinal)

    def links(self) -> dict[int, Link]:
        """Return the link to each replica that is connected, by ordinal."""
        return dict(self._by_ordinal)

    def send(self, ordinal: int, frame: Frame) -> None:
        """Send a frame to a replica; it is lost where there is no link."""
        if (link := self._by_ordinal.get(ordinal)) is not None:
            link.send(frame)

    def say_open(self) -> None:
        """Tell everybody anew whom this replica believes to lead."""
        message = self._make_open()
        for link in self._links:
            link.send(message)

    def add_address(self, address: str) -> None:
        """Take note of where a replica may listen."""
        _, colon, port = address.rpartition(":")
        if colon and port.isdecimal() and address not in self._heard:
            self._heard.append(address)

    def keep_connected(self) -> None:
        """Begin to connect to whom there is no link, now and then."""
        loop = asyncio.get_running_loop()
        if self._is_closing or loop.time() < self._next_try_s:
            return
        self._next_try_s = loop.time() + _CONNECT_EVERY_S
        self._drop_silent(loop.time())
        self.say_open()
        me = self._make_open()
        linked = {link.peer.address for link in self._by_ordinal.values() if link.peer is not None}
        wanted = {address for ordinal, address in self._known.items() if ordinal < me.ordinal}
        wanted |= {*self._seeds, *self._heard}
        for address in wanted - linked - self._not_ours - {me.address} - set(self._connecting):
            task = loop.create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(partial(self._connected, address))

    def _connected(self, address: str, _: asyncio.Task[None]) -> None:
        self._connecting.pop(address, None)

    def _drop_silent(self, now_s: float) -> None:
        for link in list(self._links):
            if now_s - link.heard_s > _SILENT_S:
                link.close(f"nothing was heard for {_SILENT_S:g} s")

    async def _connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, link = await loop.create_connection(
                    partial(Link, self, is_ours=True), host.strip("[]"), int(port)
                )
        except OSError as error:
            if self._complaints.get(address) != str(error):
                _log.warning("no link to the replica at %s: %s", address, error)
            self._complaints[address] = str(error)
        else:
            link.dialed = address
            self._complaints.pop(address, None)

    # LinkHandler

    def link_made(self, link: Link) -> None:
        """Say who this replica is."""
        if len(self._links) >= _LINKS_MAX or self._is_closing:
            link.close("there are too many links")
            return
        self._links.add(link)
        link.send(self._make_open())

    def link_received(self, link: Link, message: Message) -> None:
        """Hand on a frame of a replica of the same group."""
        if isinstance(message, Open) and not self._take(link, message):
            return
        self._handler.received(link, message)

    def link_roomy(self, link: Link) -> None:
        """Let what waited go on."""
        self._handler.roomy(link)

    def link_lost(self, link: Link) -> None:
        """Forget a link."""
        self._links.discard(link)
        for ordinal, known in list(self._by_ordinal.items()):
            if known is link:
                del self._by_ordinal[ordinal]
        self._handler.lost(link)

    def _take(self, link: Link, peer: Open) -> bool:
        me = self._make_open()
        refusal = ""
        if peer.group != me.group:
            refusal = f"it belongs to the group {peer.group}, this replica to {me.group}"
        elif peer.ordinal == me.ordinal:
            refusal = f"it has the brokerId {peer.ordinal} of this replica"
        elif peer.segment_bytes != me.segment_bytes:
            refusal = (
                f"its mappedFileSizeCommitLog is {peer.segment_bytes}, that of this replica "
                f"{me.segment_bytes}"
            )
        if refusal:
            link.close(refusal)
            return False
        for ordinal, address in peer.peers.items():
            if ordinal != me.ordinal:
                self._known.setdefault(ordinal, address)
        self._known[peer.ordinal] = peer.address
        if link.is_ours and peer.ordinal > me.ordinal:
            # It connects to this replica now that it knows where: else two links end each other.
            self._not_ours.add(link.dialed)
            link.close("it connects itself")
            return False
        before = self._by_ordinal.get(peer.ordinal)
        if before is not link:
            if before is not None:
                before.close("there is a newer link to this replica")
            self._by_ordinal[peer.ordinal] = link
            _log.info("linked replica=%d peer=%s", peer.ordinal, link.address)
        return True
