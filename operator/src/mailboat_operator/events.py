"""Kubernetes events about a custom resource: few, and never the same one in a row."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from mailboat_operator.kinds import EVENT, POD, micro_time
from mailboat_operator.kube_api import KubeApi, KubeApiError, KubeUnreachableError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import Notify
from mailboat_operator.planner.snapshot import Manifest

logger = logging.getLogger(__name__)

SILENT_S = 600.0
"""How long the same event of the same resource is not posted again."""

_REMEMBERED = 2048
_LONGEST_NOTE_BYTES = 1024
_LONGEST_NAME = 253
_COMPONENT = "mailboat-operator"


class EventPoster:
    """Posts events; one that cannot be posted is a log line, never a failure of the work."""

    def __init__(
        self,
        api: KubeApi,
        metrics: OperatorMetrics,
        instance: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`instance` names this replica in the event."""
        self._api = api
        self._metrics = metrics
        self._instance = instance
        self._monotonic = monotonic
        self._posted: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    async def post(self, regarding: Manifest, notice: Notify) -> bool:
        """Post the event unless the same one was posted lately; says whether it was posted."""
        metadata = regarding["metadata"]
        identity = (str(metadata.get("uid")), notice.reason, notice.message)
        now_s = self._monotonic()
        if now_s - self._posted.get(identity, float("-inf")) < SILENT_S:
            return False
        level = logging.WARNING if notice.type == "Warning" else logging.INFO
        name = f"{regarding['kind']}/{metadata['namespace']}/{metadata['name']}"
        logger.log(level, "%s: %s: %s", name, notice.reason, notice.message)
        try:
            event = self._event(regarding, notice)
            await self._api.create(EVENT, metadata["namespace"], event)
        except (KubeApiError, KubeUnreachableError) as error:
            logger.warning("%s: the event %s is not posted: %s", name, notice.reason, error)
            return False
        self._metrics.events_total.labels(notice.type, notice.reason).inc()
        self._posted[identity] = now_s
        self._posted.move_to_end(identity)
        while len(self._posted) > _REMEMBERED:
            self._posted.popitem(last=False)
        return True

    def _event(self, regarding: Manifest, notice: Notify) -> Manifest:
        metadata = regarding["metadata"]
        event: Manifest = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {
                "name": _name(metadata["name"]),
                "namespace": metadata["namespace"],
            },
            "eventTime": micro_time(time.time()),
            "type": notice.type,
            "reason": notice.reason,
            "action": notice.reason,
            "note": _note(notice.message),
            "reportingController": f"mailboat.dev/{_COMPONENT}",
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata.get("uid"),
            },
        }
        if notice.related_pod is not None:
            event["related"] = {
                "apiVersion": POD.api_version,
                "kind": POD.kind,
                "namespace": metadata["namespace"],
                "name": notice.related_pod,
            }
        return event


def _name(regarding: str) -> str:
    """Name an event after what it is about, as far as there is room for it."""
    moment = f".{time.time_ns():x}"
    return regarding[: _LONGEST_NAME - len(moment)].rstrip("-.") + moment


def _note(message: str) -> str:
    """Cut a message to the bytes, not characters, that the API server takes."""
    return message.encode(errors="replace")[:_LONGEST_NOTE_BYTES].decode(errors="ignore")
