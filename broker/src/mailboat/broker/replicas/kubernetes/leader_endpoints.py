"""Where the Service of a group leads to: an EndpointSlice that whoever leads writes.

The operator makes it, with labels and ports and without an endpoint; the leader puts its own
address there, and in `mailboat.dev/epoch` since which epoch. Who finds a later one leaves it alone,
unless it can write its Lease as before: whoever leads later has written that first.
The ports `remoting` and `remoting-fast` lead to one that nobody else listens on: nodes of a cluster
lead clients to a former leader for a moment, and a connection to a slave would stay for ever.
"""

import asyncio
import contextlib
import copy
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from mailboat.broker.replicas.kubernetes.api import Address, ApiError, KubeApi
from mailboat.broker.supervisor import TaskProgress
from mailboat.replication.lease_manifest import EPOCH

_log: Final = logging.getLogger(__name__)

ENDPOINT_SLICES: Final = Address("discovery.k8s.io/v1", "endpointslices")
LOOK_EVERY_S: Final = 10.0
"""Somebody may delete the object, and the operator make it anew."""

_CLIENTS_PORTS: Final = frozenset({"remoting", "remoting-fast"})
_RETRY_S: Final = 0.5
_LARGEST_DIGITS: Final = 16


class Pod(NamedTuple):
    """Where whoever leads is found."""

    name: str
    uid: str
    ip: str


class Led(NamedTuple):
    """What is led here, by the Lease as it was written last."""

    epoch: int
    renewals: int


class LeaderEndpoints:
    """Keeps the EndpointSlice right while this replica leads."""

    def __init__(
        self,
        api: KubeApi,
        name: str,
        pod: Pod,
        leads: Callable[[], Led | None],
        listen: Callable[[], Awaitable[int]],
    ) -> None:
        """Write the object of a name.

        Args:
            api: Of the API server.
            name: The object's.
            pod: This replica's.
            leads: Says what is led here, None for nothing.
            listen: Opens the leader's port and returns it; asked once.
        """
        self._api = api
        self._name = name
        self._pod = pod
        self._leads = leads
        self._listen = listen
        self._port = 0
        # What was led when an epoch was found that is later.
        self._doubted: tuple[int, Led] | None = None
        self._wanted = asyncio.Event()
        self.trouble = ""
        """Why it is not right while this replica leads, empty where it is."""

    def wake(self) -> None:
        """Look at it soon: this replica leads now."""
        self._wanted.set()

    async def keep(self, progress: TaskProgress) -> None:
        """Write it while this replica leads; runs for ever."""
        while True:
            progress.beat(2 * (LOOK_EVERY_S + self._api.timeout_s))
            self._wanted.clear()
            pause_s = LOOK_EVERY_S
            if led := self._leads():
                try:
                    self._port = self._port or await self._listen()
                    trouble = await self._write(led)
                except (ApiError, OSError) as error:
                    trouble = str(error)
                self._note(trouble)
                if trouble:
                    pause_s = _RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()

    async def _write(self, led: Led) -> str:
        """Write it where that is wanted; return what is wrong with it, empty where it is right.

        Raises:
            ApiError: there was no answer.
        """
        kind, name = ENDPOINT_SLICES, self._name
        reply = await self._api.get(kind, name)
        if reply.status != HTTPStatus.OK:
            return self._api.refusal(reply, "GET", kind, name)
        epoch, found = led.epoch, _epoch_of(reply.body)
        if found > epoch and not self._is_refuted(found, led):
            return f"{name} is of epoch {found}, and {epoch} is led here"
        self._doubted = None
        ports = _ports(reply.body, self._port)
        is_same = found == epoch and _is_alone(self._endpoint(), reply.body)
        if is_same and ports == reply.body.get("ports"):
            return ""
        manifest = copy.deepcopy(reply.body)
        metadata = manifest["metadata"]
        metadata.pop("managedFields", None)
        metadata["annotations"] = (metadata.get("annotations") or {}) | {EPOCH: str(epoch)}
        manifest["endpoints"], manifest["ports"] = [self._endpoint()], ports
        reply = await self._api.put(kind, name, manifest)
        if reply.status != HTTPStatus.OK:
            return self._api.refusal(reply, "PUT", kind, name)
        place = self._pod.ip, self._port
        _log.info("clients of the group are led here: epoch=%d ip=%s port=%d", epoch, *place)
        return ""

    def _is_refuted(self, later: int, led: Led) -> bool:
        """Tell whether nobody leads a later epoch: this one's Lease was written since it was found.

        By the second write: the first one may have been on its way.
        """
        doubted = self._doubted
        if doubted is None or doubted[0] != later or doubted[1].epoch != led.epoch:
            doubted = self._doubted = later, led
        return led.renewals >= doubted[1].renewals + 2

    def _endpoint(self) -> dict[str, Any]:
        pod = {
            "kind": "Pod",
            "name": self._pod.name,
            "namespace": self._api.namespace,
            "uid": self._pod.uid,
        }
        conditions = {"ready": True, "serving": True, "terminating": False}
        return {"addresses": [self._pod.ip], "conditions": conditions, "targetRef": pod}

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.warning("clients may not be led here: %s", trouble)
        self.trouble = trouble


def _epoch_of(manifest: dict[str, Any]) -> int:
    """Return since which epoch it is as it is, 0 where that is not said."""
    annotations = manifest.get("metadata", {}).get("annotations") or {}
    text = annotations.get(EPOCH, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _LARGEST_DIGITS
    return int(text) if is_number else 0


def _ports(manifest: dict[str, Any], leaders: int) -> list[dict[str, Any]]:
    """Return the ports as they should be: those for clients are the leader's."""
    return [
        port | {"port": leaders, "protocol": "TCP"} if port.get("name") in _CLIENTS_PORTS else port
        for port in manifest.get("ports") or ()
    ]


def _is_alone(endpoint: dict[str, Any], manifest: dict[str, Any]) -> bool:
    """Tell whether it leads there and nowhere else, whatever the server has added."""
    found = manifest.get("endpoints") or []
    return len(found) == 1 and endpoint.items() <= found[0].items()
