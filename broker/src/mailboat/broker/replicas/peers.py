"""Links to the other replicas of a group: the higher ordinal of two connects to the lower.

A slave begins with what `haMasterAddress` or its name servers say; each link tells more addresses,
which are kept. Where two links lead to one replica, the newer one counts.
"""

import asyncio
import logging
import os
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from mailboat.broker.replicas.entrance import FIRST_BYTE_TIMEOUT_S, Entrance
from mailboat.broker.replicas.link import Link
from mailboat.errors import ConfigError
from mailboat.remoting.complaints import Complaints
from mailboat.remoting.dialing import Dialer
from mailboat.remoting.tls_entrance import TlsEntrance
from mailboat.replication import java_ha
from mailboat.replication.frames import Frame
from mailboat.replication.wire import FIRST_BYTE, Open, Told, newest_epoch
from mailboat.security.client_security import ClientTls
from mailboat.security.tls import ServerTls, peer_problem

_log: Final = logging.getLogger(__name__)

_CONNECT_EVERY_S: Final = 1.0
_CONNECT_TIMEOUT_S: Final = 3.0
_HANDSHAKE_TIMEOUT_S: Final = 10.0
# Who is connected to answers at once. RocketMQ's masters send nothing before they have a report.
_OPEN_WITHIN_S: Final = 1.0
# Every side says something once a second.
_SILENT_S: Final = 5.0
# So long nobody else is taken for a replica that was heard: whose process ends, closes its links.
_HELD_S: Final = 3.0
_LINKS_MAX: Final = 32
_TROUBLES_MAX: Final = 32
# Addresses that name servers have said: each master that there was has had one.
_HEARD_MAX: Final = 8
# No group gets further while a replica is away. Whoever believed in any epoch would be told of the
# last one that there is, and nobody could lead after it.
_EPOCHS_AHEAD: Final = 1 << 40


class PeerHandler(Protocol):
    """Gets what arrives from replicas of the same group."""

    def received(self, link: Link, message: Told) -> None:
        """Take a frame."""

    def roomy(self, link: Link) -> None:
        """Send on what waited for the other side to read."""

    def linked(self, link: Link) -> None:
        """Take note of the link to a replica that counts from now on."""

    def lost(self, link: Link, *, is_last: bool) -> None:
        """Forget a link; `is_last`: there is no other one to that replica."""

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
        *,
        are_counts_fixed: bool,
        tls: ServerTls | None = None,
        client_tls: ClientTls | None = None,
    ) -> None:
        """Connect to `addresses`, and to those `known` of so many replicas, by ordinal.

        With `are_counts_fixed` there are no links to replicas with other numbers of replicas than
        this one has: by hand, who may lead rests on them. Those who connect do so as `tls` says;
        with `client_tls` this side connects by TLS.
        """
        self._tls = tls
        self._dialer = Dialer(client_tls)
        self._tls_entrance: TlsEntrance | None = None
        self._complaints = Complaints("replicas")
        self._replicas = replicas
        self._are_counts_fixed = are_counts_fixed
        self._secret: Callable[[], bytes] = bytes
        self._handler = handler
        self._make_open = make_open
        self._seeds = list(addresses)
        self._heard: deque[str] = deque(maxlen=_HEARD_MAX)
        self._known = known
        # In the order in which they came.
        self._links: dict[Link, None] = {}
        self._by_ordinal: dict[int, Link] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._entrance: Entrance | None = None
        self._silent: set[str] = set()
        # Which run of a replica was at an address to which there is no need to connect, and when.
        self._needless: dict[str, tuple[str, float]] = {}
        self._next_try_s = 0.0
        self._is_closing = False
        self._heard_s: dict[int, float] = {}
        self.troubles: dict[str, str] = {}
        """Why there is no link, by the address where a replica listens for others."""

        self.port = 0
        """Where other replicas connect."""

    async def listen(
        self,
        host: str,
        port: int,
        secret: Callable[[], bytes],
        make_java_slave: Callable[[], asyncio.Protocol],
    ) -> None:
        """Accept links and make them from now on; with a `secret` all must know it.

        It is asked for with each link. Where there is none, RocketMQ's slaves are accepted as well:
        they know none.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._secret = secret
        loop = asyncio.get_running_loop()
        kinds: dict[int, Callable[[], asyncio.Protocol]] = {
            FIRST_BYTE: lambda: Link(self, secret())
        }
        if not secret():
            # They would get all messages, and know no secret.
            kinds[java_ha.FIRST_BYTE] = make_java_slave
        self._entrance = Entrance(kinds, self._complaints)
        make = self._entrance.make
        tls = self._tls
        if tls is not None and tls.mode != "disabled":
            takes_plain = tls.mode == "permissive"
            self._tls_entrance = TlsEntrance(
                lambda: tls.context,
                make,
                self._complaints.complain,
                takes_plain=takes_plain,
                timeout_s=FIRST_BYTE_TIMEOUT_S if takes_plain else _HANDSHAKE_TIMEOUT_S,
            )
            make = self._tls_entrance.make
        self._server = await loop.create_server(make, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all links and accept none."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        if self._tls_entrance is not None:
            self._tls_entrance.close()
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

    def has_client_address(self, address: str) -> bool:
        """Tell whether a replica that is linked serves clients at an address."""
        peers = (link.peer for link in self._by_ordinal.values())
        return any(peer is not None and peer.client_address == address for peer in peers)

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
        _, colon, port = address.rpartition(":")
        if colon and port.isdecimal() and address not in self._heard:
            self._heard.append(address)

    def try_again(self, address: str) -> None:
        """Look anew whether a replica listens at an address where none did."""
        self._silent.discard(address)

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
        wanted |= {*self._seeds, *self._heard}
        self._forget_needless(me.boot, loop.time())
        needless = {me.address, *self._silent, *self._needless, *self._connecting}
        for address in wanted - linked - needless:
            task = loop.create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(partial(self._connected, address))

    def _connected(self, address: str, _: asyncio.Task[None]) -> None:
        self._connecting.pop(address, None)

    def _forget_needless(self, own_boot: str, now_s: float) -> None:
        """Connect again where somebody was whom there is no link to: another one may be there."""
        boots = {link.peer.boot for link in self._by_ordinal.values() if link.peer is not None}
        self._needless = {
            address: (boot, at_s)
            for address, (boot, at_s) in self._needless.items()
            if boot in boots or boot == own_boot or now_s < at_s + _SILENT_S
        }

    def _drop_silent(self, now_s: float) -> None:
        for link in list(self._links):
            if now_s - link.heard_s > _SILENT_S and not link.is_held:
                link.close(f"nothing was heard for {_SILENT_S:g} s")

    async def _connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        links: list[Link] = []

        def make() -> Link:
            links.append(Link(self, self._secret(), dialed=address))
            return links[-1]

        try:
            await self._dialer.prepare()
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._dialer.connect(make, host.strip("[]"), int(port))
        except (OSError, ValueError, OverflowError, ConfigError) as error:
            trouble = _why_not(error)
            if self.troubles.get(address) != trouble:
                _log.warning("no link to the replica at %s: %s", address, trouble)
            self._note_trouble(address, trouble)
        else:
            await self._hear_from(links[-1])

    def _note_trouble(self, address: str, trouble: str) -> None:
        if address in self.troubles or len(self.troubles) < _TROUBLES_MAX:
            self.troubles[address] = trouble

    async def _hear_from(self, link: Link) -> None:
        """Wait until the other side has said something, as replicas do at once."""
        try:
            async with asyncio.timeout(_OPEN_WITHIN_S):
                await link.heard.wait()
        except TimeoutError:
            self._silent.add(link.dialed)
            link.drop("it says nothing")
            self._handler.silent(link.dialed)

    # LinkHandler

    def link_made(self, link: Link) -> None:
        """Say who this replica is."""
        if self._is_closing or not self._make_room():
            link.close("there are too many links")
            return
        self._links[link] = None
        link.send(replace(self._make_open(), nonce=link.nonce))

    def _make_room(self) -> bool:
        """End a link where there are too many; tell whether there is room for another one.

        Replicas say at once who they are. Of those who have not, it is the oldest one of the host
        that has most: so no host keeps the replicas of others out.
        """
        if len(self._links) < _LINKS_MAX:
            return True
        strangers = [link for link in self._links if link.peer is None and not link.dialed]
        if not strangers:
            return False
        counts = Counter(link.host for link in strangers)
        oldest = max(strangers, key=lambda link: counts[link.host])
        del self._links[oldest]
        oldest.close("it has not said who it is, and others come")
        return True

    def link_received(self, link: Link, message: Told) -> None:
        """Hand on a frame of a replica of the same group."""
        epoch = newest_epoch(message)
        if epoch > _EPOCHS_AHEAD:
            me = self._make_open()
            known = max(me.seen, me.epoch)
            if known and epoch > known + _EPOCHS_AHEAD:
                link.close(f"it speaks of epoch {epoch}, and {known} is the newest one here")
                return
        if isinstance(message, Open) and not self._take(link, message):
            return
        self._handler.received(link, message)

    def link_refused(self, link: Link, reason: str) -> None:
        """Say why a connection to here is ended, once: strangers come as often as they like."""
        self._complaints.complain(link.address, reason)

    def link_roomy(self, link: Link) -> None:
        """Let what waited go on."""
        self._handler.roomy(link)

    def link_lost(self, link: Link) -> None:
        """Forget a link."""
        self._links.pop(link, None)
        if link.dialed and link.peer is None:
            self._note_stranger(link)
        is_last = False
        for ordinal, known in list(self._by_ordinal.items()):
            if known is link:
                is_last = True
                del self._by_ordinal[ordinal]
                self._heard_s[ordinal] = link.heard_s
        now_s = asyncio.get_running_loop().time()
        if is_last and now_s - link.made_s > _CONNECT_EVERY_S:
            # Whoever leads waits for so long and no longer.
            self._next_try_s = now_s
        self._handler.lost(link, is_last=is_last)

    def _note_stranger(self, link: Link) -> None:
        """Say why somebody was left who has not said which replica he is."""
        trouble = link.ending or "it ended the connection"
        if not link.has_spoken:
            trouble = link.ending or "it ended the connection without a word"
            if link.dialed in self._seeds:
                trouble += (
                    "; look at haMasterAddress: it takes the haListenPort of a broker (10912), not "
                    "its port for clients or HTTP"
                )
        if self.troubles.get(link.dialed) != trouble and not self._is_closing:
            _log.warning("no link to the replica at %s: %s", link.dialed, trouble)
        self._note_trouble(link.dialed, trouble)

    def _note_needless(self, link: Link, peer: Open) -> None:
        if link.dialed:
            self._needless[link.dialed] = peer.boot, asyncio.get_running_loop().time()

    def _is_held_by_another(self, link: Link, peer: Open) -> bool:
        """Tell whether another run of a replica has this place, and is heard.

        Without that two brokers with one number would take each other's links for ever.
        """
        holding = self._by_ordinal.get(peer.ordinal)
        if holding is None or holding is link or holding.peer is None:
            return False
        silent_s = asyncio.get_running_loop().time() - holding.heard_s
        return holding.peer.boot != peer.boot and silent_s < _HELD_S

    def _take(self, link: Link, peer: Open) -> bool:
        me = self._make_open()
        if peer.boot == me.boot:
            self._note_needless(link, peer)
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
        elif self._are_counts_fixed and (peer.total_replicas, peer.in_sync_replicas) != (
            me.total_replicas,
            me.in_sync_replicas,
        ):
            refusal = (
                f"its totalReplicas is {peer.total_replicas} and its inSyncReplicas "
                f"{peer.in_sync_replicas}, those of this replica are {me.total_replicas} and "
                f"{me.in_sync_replicas}: stop all replicas and make them the same"
            )
        elif self._is_held_by_another(link, peer):
            refusal = (
                f"it has the brokerId {peer.ordinal}, and so has a replica that lives: give each "
                "its own"
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
            self._note_needless(link, peer)
            # Until it does so, whoever led last may lead again that knows nothing of it.
            self._handler.received(link, peer)
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
            self._handler.linked(link)
        return True


def _why_not(error: Exception) -> str:
    """Say why a connection could not be made."""
    if isinstance(error, ConfigError):
        return str(error)
    if not isinstance(error, OSError):
        return "this is no address"
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer"
    if isinstance(error, ssl.SSLError) or error.errno is None:
        return peer_problem(error)
    return os.strerror(error.errno).lower()
