"""Requests to the name servers.

One name server is used until it fails; then the next one of the list takes over.

Source: apache/rocketmq remoting/netty/NettyRemotingClient.java (getAndCreateNameserverChannel).
"""

import logging
import random
from collections.abc import Sequence
from typing import Final

from mailboat.errors import BrokerError, RemotingError, RouteNotFoundError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.route import TopicRouteData, decode_topic_route
from mailboat.remoting.client import RemotingClient

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 3.0


class NameServers:
    """The name servers of one client."""

    __slots__ = ("_addresses", "_chosen", "_remoting")

    def __init__(self, addresses: Sequence[str], remoting: RemotingClient) -> None:
        """Use `addresses` in turn, beginning anywhere, over the connections of `remoting`."""
        self._addresses = list(addresses)
        self._chosen = random.randrange(len(self._addresses))
        self._remoting = remoting

    @property
    def addresses(self) -> list[str]:
        """All name servers, as `host:port`."""
        return list(self._addresses)

    async def request(
        self, code: int, ext_fields: dict[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Ask one name server, the others in turn where it does not answer.

        Raises:
            RemotingError: none of them answers.
            BrokerError: the answer is not SUCCESS.
        """
        failure: RemotingError | None = None
        for _ in self._addresses:
            address = self._addresses[self._chosen]
            command = RemotingCommand.request(code, ext_fields, body)
            try:
                response = await self._remoting.request(address, command, REQUEST_TIMEOUT_S)
            except RemotingError as error:
                failure = error
                self._chosen = (self._chosen + 1) % len(self._addresses)
                following = self._addresses[self._chosen]
                if following != address:
                    logger.warning("name server %s gives way to %s: %s", address, following, error)
                continue
            if response.code != ResponseCode.SUCCESS:
                raise BrokerError(response.code, response.remark or "")
            return response
        assert failure is not None
        raise failure

    async def request_all(self, code: int, ext_fields: dict[str, ExtValue]) -> None:
        """Send the same request to every name server.

        Raises:
            RemotingError: one of them does not answer.
            BrokerError: an answer is not SUCCESS.
        """
        for address in self._addresses:
            command = RemotingCommand.request(code, ext_fields)
            response = await self._remoting.request(address, command, REQUEST_TIMEOUT_S)
            if response.code != ResponseCode.SUCCESS:
                raise BrokerError(response.code, response.remark or "")

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return where a topic's queues are.

        Raises:
            RouteNotFoundError: no broker has registered the topic.
            RemotingError: no name server answers.
        """
        fields: dict[str, ExtValue] = {"topic": topic, "acceptStandardJsonOnly": True}
        try:
            response = await self.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFoundError(
                    f"no route for topic {topic}: no broker has registered it "
                    f"at the name server ({';'.join(self._addresses)})"
                ) from error
            raise
        return decode_topic_route(response.body)
