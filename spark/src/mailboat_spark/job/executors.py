"""Executors as pods: Spark's settings for them, and clearing what an earlier run left.

The driver runs in a pod of ours (client mode), which needs no rights on services and network
policies. Executors belong to that pod and vanish with it. When only its container restarts, the pod
stays, and so do the executors of the earlier run: these are deleted at the start, by their labels.
"""

import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from mailboat.errors import MailboatError
from mailboat_spark.job.options import KUBERNETES_MASTER, KubernetesOptions

logger = logging.getLogger(__name__)

JOB_LABEL: Final = "mailboat.dev/spark-job"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HTTP_TIMEOUT_S: Final = 20.0
_GONE_TIMEOUT_S: Final = 60.0
_GRACE_S: Final = 5
_POLL_S: Final = 1.0


class KubernetesApiError(MailboatError):
    """The Kubernetes API did not do what was asked."""


def executor_settings(options: KubernetesOptions, job: str) -> dict[str, str]:
    """Return Spark's settings for executors as pods of job `job`."""
    settings = {
        "spark.kubernetes.namespace": options.namespace,
        "spark.kubernetes.container.image": options.image,
        "spark.kubernetes.container.image.pullPolicy": options.image_pull_policy,
        **{
            f"spark.kubernetes.executor.label.{label}": value
            for label, value in _own_labels(job, options.instance).items()
        },
        "spark.driver.host": options.pod_ip,
        "spark.driver.bindAddress": options.pod_ip,
        "spark.driver.port": str(options.driver_port),
        "spark.driver.blockManager.port": str(options.block_manager_port),
        "spark.blockManager.port": str(options.block_manager_port),
        "spark.executor.instances": str(options.executors),
        "spark.executor.cores": str(options.executor_cores),
        "spark.executor.memory": options.executor_memory,
        "spark.executor.memoryOverhead": options.executor_memory_overhead,
        # Without it any pod may speak to driver and executors. Spark makes the secret at each start
        # and gives it to the executors.
        "spark.authenticate": "true",
        # A stream runs for months; Spark would end it after a few lost executors in all.
        "spark.executor.failuresValidityInterval": "1h",
    }
    for name, value in (
        ("spark.kubernetes.driver.pod.name", options.pod_name),
        ("spark.kubernetes.executor.request.cores", options.executor_request_cores),
        ("spark.kubernetes.executor.podTemplateFile", options.executor_pod_template),
    ):
        if value:
            settings[name] = value
    return settings


def _own_labels(job: str, instance: str) -> dict[str, str]:
    """Return what tells a job's executors from those of others."""
    return {JOB_LABEL: job} | ({INSTANCE_LABEL: instance} if instance else {})


class _StaysThere(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: the token is for the API server alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


class PodClient:
    """The two calls that clearing needs, with the rights of the pod's service account."""

    def __init__(self, master: str, namespace: str, account_dir: Path = ACCOUNT_DIR) -> None:
        """Call the API at `master`, as Spark is given it (`k8s://https://...`)."""
        url = master.removeprefix(KUBERNETES_MASTER)
        self._base = url if "://" in url else f"https://{url}"
        self._pods = f"{self._base.rstrip('/')}/api/v1/namespaces/{quote(namespace)}/pods"
        self._account_dir = account_dir

    def delete_executors(self, job: str, instance: str, *, but_of: str) -> int:
        """Delete the job's executors of earlier runs and wait until they are gone.

        Args:
            job: The job's name.
            instance: What tells jobs of this name apart; empty takes those of every instance.
            but_of: The Spark application that runs now; its executors stay.

        Returns:
            How many there were.

        Raises:
            KubernetesApiError: the API refuses, or pods stay.
        """
        own = [f"{label}={value}" for label, value in _own_labels(job, instance).items()]
        labels = [*own, "spark-role=executor", f"spark-app-selector!={but_of}"]
        selector = urlencode({"labelSelector": ",".join(labels)})
        names = self._names(selector)
        if not names:
            return 0
        logger.info("deleting executors of an earlier run: %s", ", ".join(names))
        self._call("DELETE", f"{selector}&gracePeriodSeconds={_GRACE_S}")
        deadline_s = time.monotonic() + _GONE_TIMEOUT_S
        while left := self._names(selector):
            if time.monotonic() > deadline_s:
                raise KubernetesApiError(
                    f"pods of an earlier run do not end: {', '.join(left)}; delete them"
                )
            time.sleep(_POLL_S)
        return len(names)

    def _names(self, selector: str) -> list[str]:
        return [item["metadata"]["name"] for item in self._call("GET", selector)["items"]]

    def _call(self, method: str, query: str) -> Any:
        address = f"{self._pods}?{query}"
        # The address is the API server's, from the pod's environment or its own defaults.
        request = urllib.request.Request(address, method=method)  # noqa: S310
        token = self._account_dir / "token"
        if token.is_file():
            request.add_header("Authorization", f"Bearer {token.read_text('utf-8').strip()}")
        certificate = self._account_dir / "ca.crt"
        handlers = [urllib.request.ProxyHandler({}), _StaysThere()]
        if self._base.startswith("https:"):
            authorities = str(certificate) if certificate.is_file() else None
            context = ssl.create_default_context(cafile=authorities)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        try:
            opener = urllib.request.build_opener(*handlers)
            with opener.open(request, timeout=_HTTP_TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as exc:
            with exc:
                raise KubernetesApiError(
                    f"{method} {self._pods}: {exc.code} {exc.reason}; "
                    "does the service account have the job's Role?"
                ) from exc
        except OSError as exc:
            raise KubernetesApiError(f"{method} {self._pods}: {exc}") from exc
