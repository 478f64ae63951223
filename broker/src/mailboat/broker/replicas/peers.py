"""Links to the other replicas of a group: the higher ordinal of two connects to the lower.

A slave begins with what `haMasterAddress` or its name servers say; each link tells more addresses,
which are kept. Where two links lead to one replica, the newer one counts.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from mailboat.broker.replicas.entrance import Entrance
from mailboat.broker.replicas.link import Link
from mailboat.replication import java_ha
from mailboat.replication.frames import Frame
from mailboat.replication.wire import FIRST_BYTE, Open, Told

_log: Final = logging.getLogger(__name__)

_CONNECT_EVERY_S: Final = 1.0
_CONNECT_TIMEOUT_S: Final = 3.0
# Who is connected to answers at once. RocketMQ's masters send nothing before they have a report.
_OPEN_WITHIN_S: Final = 1.0
# Every side says something once a second.
_SILENT_S: Final = 5.0
_LINKS_MAX: Final = 32
_TROUBLES_MAX: Final = 32


class PeerHandler(Protocol):
    """Gets what arrives from replicas of the same group."""

    def received(self, link: Link, message: Told) -> None:
        """Take a frame."""

    def roomy(self, link: Link) -> None:
        """Send on what waited for the other side to read."""

    def lost(self, link: Link) -> None:
        """Forget a link."""

    def silent(self, address: str) -> None:
        """Take note that whoever listens there does not speak as replicas do."""


class Peers:
    """All links of one replica."""

    def __init__(
        self,
        handler: PeerHandler,
        make_open: Callable[[], Open],
        addresses: Iterable[str],
        known: dict[int, str],
        replicas: int,
    ) -> None:
        """Connect to `addresses`, and to those `known` of so many replicas, by ordinal."""
        self._replicas = replicas
        self._secret = b""
        self._handler = handler
        self._make_open = make_open
        self._seeds = list(addresses)
        self._known = known
        self._links: set[Link] = set()
        self._by_ordinal: dict[int, Link] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._entrance: Entrance | None = None
        self._not_ours: set[str] = set()
        self._next_try_s = 0.0
        self._is_closing = False
        self._heard_s: dict[int, float] = {}
        self.troubles: dict[str, str] = {}
        """Why there is no link, by the address where a replica listens for others."""

        self.port = 0
        """Where other replicas connect."""

    async def listen(
        self, host: str, port: int, secret: bytes, make_java_slave: Callable[[], asyncio.Protocol]
    ) -> None:
        """Accept links and make them from now on; with a `secret` all must know it.

        Without one RocketMQ's slaves are accepted as well: they know none.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._secret = secret
        loop = asyncio.get_running_loop()
        kinds: dict[int, Callable[[], asyncio.Protocol]] = {
            FIRST_BYTE: partial(Link, self, self._secret)
        }
        if not secret:
            # They would get all messages, and know no secret.
            kinds[java_ha.FIRST_BYTE] = make_java_slave
        self._entrance = Entrance(kinds)
        self._server = await loop.create_server(self._entrance.make, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all links and accept none."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        if self._entrance is not None:
            self._entrance.close()
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

    def address_of(self, ordinal: int) -> str:
        """Return where a replica listens for others, empty where that is not known."""
        return self._known.get(ordinal, "")

    def silent_s(self, ordinal: int) -> float | None:
        """Return how long nothing was heard of a replica, None where nothing ever was."""
        link = self._by_ordinal.get(ordinal)
        heard_s = self._heard_s.get(ordinal) if link is None else link.heard_s
        return None if heard_s is None else asyncio.get_running_loop().time() - heard_s

    def send(self, ordinal: int, frame: Frame) -> None:
        """Send a frame to a replica; it is lost where there is no link."""
        if (link := self._by_ordinal.get(ordinal)) is not None:
            link.send(frame)

    def say_open(self) -> None:
        """Tell everybody anew whom this replica believes to lead."""
        message = self._make_open()
        for link in self._links:
            link.send(replace(message, nonce=link.nonce))

    def add_address(self, address: str) -> None:
        """Take note of where a replica may listen."""
        if address and address not in self._seeds:
            self._seeds.append(address)

    def try_again(self, address: str) -> None:
        """Look anew whether a replica listens at an address where none did."""
        self._not_ours.discard(address)

    def keep_connected(self) -> None:
        """Begin to connect to whom there is no link, now and then."""
        loop = asyncio.get_running_loop()
        if self._is_closing or loop.time() < self._next_try_s:
            return
        self._next_try_s = loop.time() + _CONNECT_EVERY_S
        self._drop_silent(loop.time())
        for link in self._links:
            link.flow.sample(loop.time())
        self.say_open()
        me = self._make_open()
        linked = {link.peer.address for link in self._by_ordinal.values() if link.peer is not None}
        # Also whoever is connected and has not said who it is, and names of known addresses.
        linked |= {link.dialed for link in self._links}
        wanted = {address for ordinal, address in self._known.items() if ordinal < me.ordinal}
        wanted |= set(self._seeds)
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
                    partial(Link, self, self._secret, dialed=address), host.strip("[]"), int(port)
                )
        except OSError as error:
            trouble = "no answer" if error.errno is None else os.strerror(error.errno).lower()
            if self.troubles.get(address) != trouble:
                _log.warning("no link to the replica at %s: %s", address, trouble)
            self._note_trouble(address, trouble)
        else:
            await self._hear_from(link)

    def _note_trouble(self, address: str, trouble: str) -> None:
        if address in self.troubles or len(self.troubles) < _TROUBLES_MAX:
            self.troubles[address] = trouble

    async def _hear_from(self, link: Link) -> None:
        """Wait until the other side has said something, as replicas do at once."""
        try:
            async with asyncio.timeout(_OPEN_WITHIN_S):
                await link.heard.wait()
        except TimeoutError:
            self._not_ours.add(link.dialed)
            link.drop("it says nothing")
            self._handler.silent(link.dialed)

    # LinkHandler

    def link_made(self, link: Link) -> None:
        """Say who this replica is."""
        if len(self._links) >= _LINKS_MAX or self._is_closing:
            link.close("there are too many links")
            return
        self._links.add(link)
        link.send(replace(self._make_open(), nonce=link.nonce))

    def link_received(self, link: Link, message: Told) -> None:
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
        if link.dialed and link.peer is None:
            self._note_trouble(link.dialed, link.ending or "it ended the connection")
        for ordinal, known in list(self._by_ordinal.items()):
            if known is link:
                del self._by_ordinal[ordinal]
                self._heard_s[ordinal] = link.heard_s
        self._handler.lost(link)

    def _take(self, link: Link, peer: Open) -> bool:
        me = self._make_open()
        if peer.boot == me.boot:
            self._not_ours.add(link.dialed)
            link.close("it is this replica itself")
            return False
        refusal = ""
        if peer.group != me.group:
            refusal = f"it belongs to the group {peer.group}, this replica to {me.group}"
        elif peer.ordinal == me.ordinal:
            refusal = f"it has the brokerId {peer.ordinal} of this replica"
        elif not 0 <= peer.ordinal < self._replicas:
            refusal = f"it has the brokerId {peer.ordinal}, and totalReplicas is {self._replicas}"
        elif peer.segment_bytes != me.segment_bytes:
            refusal = (
                f"its mappedFileSizeCommitLog is {peer.segment_bytes}, that of this replica "
                f"{me.segment_bytes}"
            )
        if refusal:
            self._note_trouble(peer.address, refusal)
            link.close(refusal)
            return False
        for ordinal, address in peer.peers.items():
            if ordinal != me.ordinal and 0 <= ordinal < self._replicas:
                self._known.setdefault(ordinal, address)
        self._known[peer.ordinal] = peer.address
        if link.dialed and peer.ordinal > me.ordinal:
            # It connects to this replica now that it knows where: else two links end each other.
            self._not_ours.add(link.dialed)
            link.close("it connects itself")
            return False
        for address in (peer.address, link.dialed):
            self.troubles.pop(address, None)
        before = self._by_ordinal.get(peer.ordinal)
        if before is not link:
            if before is not None:
                before.close("there is a newer link to this replica")
            self._by_ordinal[peer.ordinal] = link
            _log.info("linked replica=%d peer=%s", peer.ordinal, link.address)
        return True
