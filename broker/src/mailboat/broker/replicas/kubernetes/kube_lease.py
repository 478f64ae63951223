"""The lease of a group in the API server: an object that is read whole and replaced whole."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from mailboat.broker.replicas.kubernetes.api import Address, ApiError, KubeApi
from mailboat.broker.replicas.lease_store import LeaseStoreError
from mailboat.replication.events import Outcome
from mailboat.replication.lease import LARGEST_LEAP, Lease
from mailboat.replication.lease_manifest import (
    API_VERSION,
    LeaseFormatError,
    decode_lease,
    encode_lease,
)

_log: Final = logging.getLogger(__name__)

LEASES: Final = Address(API_VERSION, "leases")


class KubeLease:
    """A store of one lease (`LeaseStore`).

    A write names the uid of the object that it replaces too, so that one which comes late does not
    make anew what was deleted meanwhile. Who wants to make one anew needs the right to create the
    object of that name: the API server asks for it where a PUT finds nothing.
    """

    def __init__(
        self,
        api: KubeApi,
        name: str,
        lease_seconds: int,
        seen_epoch: Callable[[], int] = lambda: 0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Keep the Lease of a name in the namespace of the pod.

        `seen_epoch` says which is the newest epoch that this replica has known before its start.
        """
        self._api = api
        self._name = name
        self._lease_seconds = lease_seconds
        self._now = now
        self._seen_epoch = seen_epoch
        self._last: Lease | None = None
        # The newest object that was seen: a new one is to have its labels and owners.
        self._seen: dict[str, Any] = {}
        # What is there and is no lease; None where it is one, or there is none.
        self._odd: dict[str, Any] | None = None
        self._troubles = {"GET": "", "PUT": ""}
        self._is_unanswered = False
        self.alarm = ""

    @property
    def trouble(self) -> str:
        """Why the API server was of no use when it was asked last, empty where it was."""
        return self._troubles["PUT"] or self._troubles["GET"]

    async def read(self) -> Lease | None:
        """Return the lease, None for no object or one that is no lease.

        Raises:
            LeaseStoreError: there is no answer that says either.
        """
        try:
            reply = await self._api.get(LEASES, self._name)
        except ApiError as error:
            self._note_trouble("GET", str(error))
            raise LeaseStoreError(str(error)) from error
        if reply.status == HTTPStatus.NOT_FOUND:
            self._odd = None
            self._note_alarm("")
            self._note_trouble(
                "GET",
                f"there is no Lease {self._name} in namespace {self._api.namespace}: the operator "
                "makes it, and once a replica has led, whoever leads",
            )
            return None
        if reply.status != HTTPStatus.OK:
            text = self._api.refusal(reply, "GET", LEASES, self._name)
            self._note_trouble("GET", text)
            raise LeaseStoreError(text)
        self._note_trouble("GET", "")
        if self._is_unanswered:
            # It answers again; whether it lets this replica write is for the next write.
            self._note_trouble("PUT", "")
        return self._decode(reply.body)

    async def write(self, replaced: int | None, lease: Lease) -> tuple[Outcome, Lease | None]:
        """Replace the object of a version, None for whatever is there and no lease."""
        lease = lease._replace(lease_s=self._lease_seconds)
        manifest = encode_lease(lease, self._name, self._replaced(replaced), now=self._now())
        try:
            reply = await self._api.put(LEASES, self._name, manifest)
        except ApiError as error:
            self._note_trouble("PUT", str(error))
            self._is_unanswered = True
            return Outcome.UNKNOWN, None
        is_nothing_expected = "resourceVersion" not in manifest["metadata"]
        if reply.status == HTTPStatus.CONFLICT or (
            # That is how it says that there is something.
            reply.status == HTTPStatus.UNPROCESSABLE_ENTITY and is_nothing_expected
        ):
            self._note_trouble("PUT", "")
            return Outcome.CONFLICT, None
        if reply.status not in (HTTPStatus.OK, HTTPStatus.CREATED):
            self._note_trouble("PUT", self._api.refusal(reply, "PUT", LEASES, self._name))
            is_refused = reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
            return Outcome.REFUSED if is_refused else Outcome.UNKNOWN, None
        self._note_trouble("PUT", "")
        written = self._decode(reply.body)
        if written is None or written._replace(version=0) != lease._replace(version=0):
            return Outcome.UNKNOWN, None  # Somebody on the way has changed it: a read tells.
        return Outcome.APPLIED, written

    async def close(self) -> None:
        """End the connections."""
        await self._api.close()

    def _replaced(self, version: int | None) -> dict[str, Any]:
        """Return the object as a write has to name it."""
        found = self._seen if version is not None or self._odd is None else self._odd
        metadata = dict(found.get("metadata") or {})
        if version is not None:
            metadata["resourceVersion"] = str(version)
        elif self._odd is None:
            metadata.pop("resourceVersion", None)
            metadata.pop("uid", None)
        return {**found, "metadata": metadata}

    def _decode(self, manifest: dict[str, Any]) -> Lease | None:
        try:
            lease = decode_lease(manifest)
            self._check_leap(lease)
        except LeaseFormatError as error:
            self._odd = manifest
            self._note_alarm(
                f"the Lease {self._name} in namespace {self._api.namespace} is none of a group, "
                f"and counts as if it were not there: {error}"
            )
            return None
        self._seen, self._odd = manifest, None
        self._last = lease
        self._note_alarm("")
        return lease

    def _check_leap(self, lease: Lease) -> None:
        """Refuse what no group has come to: after the largest number there would be no other one.

        Raises:
            LeaseFormatError: somebody has edited it.
        """
        last = self._last
        known = max(self._seen_epoch(), 0 if last is None else last.epoch)
        if lease.epoch > known + LARGEST_LEAP:
            raise LeaseFormatError(f"epoch {lease.epoch} cannot follow epoch {known}")
        renewals = last.renewals if last is not None else 0
        if lease.renewals > renewals + LARGEST_LEAP:
            raise LeaseFormatError(f"{lease.renewals} renewals cannot follow {renewals}")

    def _note_trouble(self, method: str, text: str) -> None:
        before, self._troubles[method] = self._troubles[method], text
        if method == "PUT":
            self._is_unanswered = False
        if text and text != before:
            _log.warning("no lease: %s", text)
        elif before and not text:
            _log.info("the lease can be %s again", "read" if method == "GET" else "written")

    def _note_alarm(self, text: str) -> None:
        if text and text != self.alarm:
            _log.error("%s", text)
        self.alarm = text
