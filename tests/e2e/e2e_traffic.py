"""Stock Java clients inside the cluster: one pod with a JVM and the jars of the interop tests."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from e2e_kube import RESTRICTED, Namespace, wait_until

# The Java client and the code that drives it are those of the interop tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from interop_client import Event, JavaCall, JavaClient, JavaClientError
from interop_jars import client_classpath

LINE = "4.9.8"
_POD = "traffic"
_FOLDER = PurePosixPath("/work")
# A stock consumer looks for routes every 30 s, and for its queues every 20 s.
_COMES_S = 240


class TrafficPod:
    """A pod in which Java producers and consumers run, driven from the test through kubectl."""

    def __init__(
        self, namespace: Namespace, log_dir: Path, properties: Mapping[str, object]
    ) -> None:
        """Start the pod and bring the jars to it.

        Args:
            namespace: where the pod runs.
            log_dir: folder of the clients' output on this machine.
            properties: those of every JVM in the pod.
        """
        self._namespace = namespace
        self._properties = properties
        self._log_dir = log_dir
        self._clients: list[JavaClient] = []
        namespace.apply(_manifest(namespace.name))
        namespace.kubectl("wait", "--for=condition=Ready", f"pod/{_POD}", "--timeout=120s")
        self._exec("tar", "--extract", "--file=-", f"--directory={_FOLDER}", data=_archive())

    def client(self, namesrv: str, properties: Mapping[str, object] | None = None) -> JavaClient:
        """Start a JVM in the pod whose clients use this name server, once it can be reached.

        A node leads to the pod of a Service that has just become ready a moment later. Properties
        are those of the JVM, such as whom it signs as.
        """
        host, _, port = namesrv.rpartition(":")
        connects = f"until (exec 3<>/dev/tcp/{host}/{port}) 2>&-; do sleep 0.2; done"
        self._exec("timeout", "60", "bash", "-c", connects)
        number = len(self._clients)
        home = _FOLDER / f"home-{number}"
        client = JavaClient(
            LINE,
            namesrv,
            Path(home),
            launch=["kubectl", "--namespace", self._namespace.name, "exec", "-i", _POD, "--"],
            class_path=f"{_FOLDER}/classes:{_FOLDER}/jars/*",
            log_dir=self._log_dir / f"client-{number}",
            properties={**self._properties, **(properties or {})},
        )
        self._clients.append(client)
        return client

    def path(self, name: str) -> str:
        """Return a path in the pod that a client can write to."""
        return str(_FOLDER / name)

    def rows(self, name: str) -> Iterator[list[str]]:
        """Return the lines of a tab separated file that a client wrote."""
        text = self._exec("cat", self.path(name)).decode()
        return csv.reader(io.StringIO(text), delimiter="\t")

    def close(self) -> None:
        """Let go of the clients, which go with the pod, and the pod with its namespace.

        What is killed is kubectl: its connection may be dead after minutes without a word, and then
        it does not end by itself.
        """
        for client in self._clients:
            client.kill()

    def _exec(self, *command: str, data: bytes | None = None) -> bytes:
        prefix = ["kubectl", "--namespace", self._namespace.name, "exec", "-i", _POD, "--"]
        done = subprocess.run(
            [*prefix, *command], input=data, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command} in the pod {_POD}: {done.stderr.decode()}"
        return done.stdout


def _archive() -> bytes:
    classes, *jars = client_classpath(LINE).split(":")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(classes, "classes")
        for jar in jars:
            archive.add(jar, f"jars/{Path(jar).name}")
    return target.getvalue()


def _manifest(namespace: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _POD, "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "java",
                    "image": os.environ["MAILBOAT_SPARK_IMAGE"],
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "securityContext": RESTRICTED,
                    "volumeMounts": [{"name": "work", "mountPath": str(_FOLDER)}],
                }
            ],
            "volumes": [{"name": "work", "emptyDir": {}}],
        },
    }


def await_places(client: JavaClient, consumer: JavaCall, count: int) -> None:
    """Wait until a consumer of the client had so many messages."""
    client.start("await_places", handle=consumer.number, count=count, timeout=_COMES_S).wait_done(
        _COMES_S + 10
    )


def stored_count(client: JavaClient, topic: str) -> int:
    """Return how many messages a topic has taken.

    Its brokers are asked again where a client's connection has ended with the one before.
    """

    def ask() -> list[Event] | None:
        try:
            return client.call("offsets", topic=topic)
        except JavaClientError:
            return None

    return sum(event["maxOffset"] for event in wait_until("ends of its queues", ask, 60))


def namesrv_of(namespace: str, name: str) -> str:
    """Return the address of a NameServer's Service, as clients in the cluster use it."""
    return f"{name}.{namespace}.svc:9876"
