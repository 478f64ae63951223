"""A Broker of several replicas, what happens to them, and Java clients that go on meanwhile."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from e2e_kube import Manifest, Namespace, run, wait_until
from e2e_nodes import node_shell
from e2e_resources import BROKER, NAME_SERVER, start_broker
from e2e_traffic import TrafficPod, await_places, namesrv_of, stored_count
from promises import promised

GROUP = f"{BROKER}-g0"
TOPIC = "sales"
SELECTOR = f"mailboat.dev/broker={BROKER}"


def start_replicas(namespace: Namespace, replicas: int = 3, **changes: Any) -> None:
    """Apply a Broker of one group, and wait until all its replicas have everything."""
    start_broker(namespace, replicas=replicas, **changes)


def lease(namespace: Namespace) -> Manifest:
    """Return the Lease of the group."""
    return namespace.get("lease", GROUP)


def holder(namespace: Namespace) -> str:
    """Return the pod that leads, by the Lease; empty if none does."""
    found = namespace.find("lease", GROUP) or {}
    return str(found.get("spec", {}).get("holderIdentity") or "").partition("/")[0]


def epoch(namespace: Namespace) -> int:
    """Return the epoch that the Lease names."""
    return int(lease(namespace)["metadata"]["annotations"]["mailboat.dev/epoch"])


def wait_another_leader(namespace: Namespace, former_epoch: int, timeout_s: float = 60) -> str:
    """Wait until a later epoch has begun; return who leads it."""
    wait_until("a later epoch", lambda: epoch(namespace) > former_epoch, timeout_s)
    return wait_until("a leader", lambda: holder(namespace), timeout_s)


def signal_process(namespace: Namespace, pod: str, signal: str) -> None:
    """Send a signal to the broker's process, as the node's owner can, past every handler."""
    found = namespace.get("pod", pod)
    [container] = found["status"]["containerStatuses"]
    number = str(container["containerID"]).rpartition("/")[2]
    command = ["ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", signal]
    run(*node_shell(found["spec"]["nodeName"]), *command, number)


@dataclass(frozen=True)
class Seen:
    """What clients saw while something happened."""

    acknowledged: int
    failed: int
    longest_gap_s: float
    failures: str


class Clients:
    """A Java producer that never stops, and a consumer that notes all that it gets."""

    def __init__(self, namespace: Namespace, traffic: TrafficPod) -> None:
        """Make the topic and begin."""
        self._traffic = traffic
        self._client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
        self._client.call("create_topic", topic=TOPIC, queues=4)
        self._consumer = self._client.start(
            "drain", topic=TOPIC, group="c", file=traffic.path("in"), batch=32
        )
        self._consumer.wait_done()
        self._turns = 0

    def start_sending(self) -> None:
        """Send from now on, with the client's own retries, each message until it is taken."""
        self._turns += 1
        self._sender = self._client.start(
            "steady",
            topic=TOPIC,
            group="p",
            prefix=f"turn-{self._turns}",
            file=self._traffic.path(f"out-{self._turns}"),
            interval=5,
            insist="true",
        )
        self._sender.wait_done()
        self.wait_sent(50)

    def wait_sent(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        self._client.call(
            "steady_await", handle=self._sender.number, count=count, timeout=60, broker=""
        )

    def stop_sending(self) -> Seen:
        """Send no more; return how it went since `start_sending`."""
        [told] = self._client.call("steady_stop", handle=self._sender.number)
        return Seen(
            told["sent"], told["failed"], told["longestGapMs"] / 1000, str(told["failures"])
        )

    def check_received(self) -> None:
        """Hold what was acknowledged against what was consumed: nothing is lost, order is kept.

        Within a queue later messages have higher offsets, and no offset holds two messages.
        """
        sent: dict[str, tuple[int, int]] = {}
        for turn in range(1, self._turns + 1):
            last: dict[int, int] = {}
            for key, _, _, queue, queue_offset in self._traffic.rows(f"out-{turn}"):
                place = int(queue), int(queue_offset)
                with promised("offsets of a queue rise"):
                    assert last.get(place[0], -1) < place[1], f"{key} went back in queue {queue}"
                last[place[0]] = place[1]
                sent[key] = place
        with promised("each acknowledged message has its own place"):
            assert len(set(sent.values())) == len(sent), "two acknowledged messages at one offset"
        # With all that is stored, also what was not acknowledged: then nothing is on its way.
        await_places(self._client, self._consumer, stored_count(self._client, TOPIC))
        received = {row[0] for row in self._traffic.rows("in")}
        lost = sent.keys() - received
        with promised("nothing acknowledged is lost"):
            assert not lost, f"{len(lost)} acknowledged messages are lost, such as {min(lost)}"

    def check_history(self) -> None:
        """Besides, read everything again: what was there for a consumer is there, where it was."""
        self.check_received()
        before = self._places("in")
        again = self._client.start(
            "drain", topic=TOPIC, group="again", file=self._traffic.path("again"), batch=32
        )
        again.wait_done()
        await_places(self._client, again, len(before))
        after = self._places("again")
        gone = {place: key for place, key in before.items() if after.get(place) != key}
        with promised("what a consumer has seen stays"):
            assert not gone, f"{len(gone)} messages went, such as {min(gone.items())}"

    def _places(self, name: str) -> dict[tuple[int, int], str]:
        """Return which message a consumer had from each queue and queue offset."""
        found: dict[tuple[int, int], str] = {}
        for key, _, queue, queue_offset, state in self._traffic.rows(name):
            place = int(queue), int(queue_offset)
            with promised("a message comes as it was sent"):
                assert state == "intact", f"{key} came {state}"
            with promised("a place has one message"):
                assert found.setdefault(place, key) == key, f"{place}: {found[place]}, then {key}"
        return found


def events(namespace: Namespace, reason: str) -> list[str]:
    """Return the texts of the Broker's events of a reason, waiting for the first one."""
    return wait_until(f"event {reason}", lambda: namespace.events(reason), 30)


def wait_process_anew(namespace: Namespace, pod: str, former: Manifest, timeout_s: float) -> None:
    """Wait until a pod that was looked at before runs another process, and is ready."""

    def is_anew() -> bool:
        found = namespace.find("pod", pod)
        if found is None or not found["status"].get("containerStatuses"):
            return False
        [now] = found["status"]["containerStatuses"]
        [before] = former["status"]["containerStatuses"]
        return bool(now["ready"]) and now["containerID"] != before["containerID"]

    wait_until(f"{pod} anew", is_anew, timeout_s)


def told(seen: list[Seen], name: str = "") -> str:
    """Return a line about several turns, for whoever reads the output."""
    gaps = sorted(one.longest_gap_s for one in seen)
    median = gaps[len(gaps) // 2]
    return json.dumps(
        {
            "what": name,
            "turns": len(seen),
            "median_s": round(median, 3),
            "worst_s": round(gaps[-1], 3),
            "failed_sends": sum(one.failed for one in seen),
            "gaps_s": [one.longest_gap_s for one in seen],
            "at": time.strftime("%Y-%m-%d"),
        }
    )
