"""What clients do with RocketMQ's features, written once for every kind of server.

A scenario is a function that drives the stock Java client on a `Stage` and returns what the client
saw as plain data. `test_features.py` holds these observations against what RocketMQ promises,
`test_differential.py` against those from the real broker. Values that no two runs share (ids,
addresses, times) are masked here; keys that begin with one "_" are measurements and not compared.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from interop_client import Event, JavaCall, JavaClient, JavaClientError

Observed = dict[str, Any]
Scenario = Callable[["Stage"], Observed]

# Every level but the second is one second, so that retries, which begin with the third, are quick.
DELAY_LEVELS = "1s 3s" + 15 * " 1s" + " 2s"
DELAY_S = {1: 1, 2: 3, 3: 1, 18: 2}
CHECK_MAX = 3

# Configuration keys of the servers on which the scenarios run, Java's and ours.
SERVER_CONFIG: dict[str, object] = {
    "brokerName": "broker-stage",
    "enablePropertyFilter": "true",
    "messageDelayLevel": DELAY_LEVELS,
    "traceTopicEnable": "true",
    "transactionCheckInterval": 1000,
    "transactionCheckMax": CHECK_MAX,
    "transactionTimeOut": 1000,
}

_MASKED_PROPERTIES = {
    "ARRIVE_TIME",
    "CONSUME_START_TIME",
    "CORRELATION_ID",
    "DLQ_ORIGIN_MESSAGE_ID",
    "ORIGIN_MESSAGE_ID",
    "PUSH_REPLY_TIME",
    "REPLY_TO_CLIENT",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "UNIQ_KEY",
    "__CRC32#",
    "__transactionId__",
}
# The consuming client adds these; they say where the queue stands, which depends on the moment.
_CLIENT_PROPERTIES = {"CONSUME_START_TIME", "MAX_OFFSET", "MIN_OFFSET"}
_TRANSACTION_BITS = 0xC


def seen(message: Event) -> Observed:
    """What a client saw of one message, without what differs from run to run."""
    return {
        "topic": message["topic"],
        "queueId": message["queueId"],
        "body": body(message),
        "tags": message["tags"],
        "keys": message["keys"],
        "flag": message["flag"],
        "reconsumeTimes": message["reconsumeTimes"],
        "transactionBits": message["sysFlag"] & _TRANSACTION_BITS,
        "prepared": message["preparedTransactionOffset"] > 0,
        "properties": {
            name: "*" if name in _MASKED_PROPERTIES else value
            for name, value in sorted(message["properties"].items())
            if name not in _CLIENT_PROPERTIES
        },
    }


def body(message: Event) -> str:
    """The body of a short message as text."""
    return base64.b64decode(message["body"]).decode()


def bodies(messages: list[Event]) -> list[str]:
    """The bodies of short messages as text."""
    return [body(message) for message in messages]


def outcome(client: JavaClient, command: str, /, **params: object) -> Observed:
    """Run a command that may be refused: how many events it printed, or why it was refused."""
    try:
        return {"events": len(client.call(command, **params))}
    except JavaClientError as error:
        return {"refused": error.kind, "code": error.code}


@dataclass
class Stage:
    """Where one scenario plays: a client, and a topic and a group that nobody else uses."""

    client: JavaClient
    name: str
    _handles: list[JavaCall] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """The scenario's topic."""
        return f"T-{self.name}"

    @property
    def group(self) -> str:
        """The scenario's consumer group."""
        return f"G-{self.name}"

    def create_topic(self, queues: int = 1) -> None:
        """Create the topic."""
        self.client.call("create_topic", topic=self.topic, queues=queues)

    def send(self, text: str, **params: Any) -> list[Event]:
        """Send messages with this text as body, numbered when there are several."""
        return self.client.call(
            "send",
            **{"topic": self.topic, "group": f"P-{self.name}"}
            | {"body": base64.b64encode(text.encode()).decode()}
            | {"exact": None if "count" in params else "true"}
            | params,
        )

    def push(self, *, queues: int = 1, **params: object) -> JavaCall:
        """Start a push consumer and wait until it owns its queues, those of its retries too."""
        call = self.start("push", **params)
        topic = str(params.get("topic", self.topic))
        self.await_queues(call, queues, topic=topic)
        if params.get("model") != "BROADCASTING":
            retry = f"%RETRY%{params.get('group', self.group)}"
            self.await_queues(call, 1, topic=retry)
        return call

    def start(self, command: str, **params: object) -> JavaCall:
        """Start something that runs until the end of the scenario."""
        # A heartbeat that comes too early for the route is lost; the next one is due after 30 s.
        names = {"topic": self.topic, "group": self.group, "heartbeat": 1000}
        call = self.client.start(command, **(names | params))
        call.wait_done()
        self._handles.append(call)
        return call

    def await_queues(self, call: JavaCall, count: int, *, topic: str | None = None) -> None:
        """Wait until a consumer owns exactly so many queues of the topic.

        The client would learn of new topics and members by timers of 20 and 30 s: it is told to
        look.
        """
        self.client.call(
            "await_queues",
            topic=topic or self.topic,
            handle=call.number,
            count=count,
            refresh="true",
            timeout=30,
        )

    def stop(self, call: JavaCall) -> None:
        """Stop a consumer; it stores its offsets at the broker."""
        self._handles.remove(call)
        self.client.call("stop", handle=call.number)

    def stored(self, topic: str, count: int = 1) -> list[Event]:
        """Wait until a topic has so many messages and pull them."""
        self.client.call("await_stored", topic=topic, count=count, timeout=30)
        return self.client.call("pull", topic=topic, all="true")

    def producer(self, text: str, **params: object) -> JavaCall:
        """Start a transaction producer of its own group, send, and answer checks from then on."""
        params = {"topic": self.topic, "group": f"P-{self.name}-{text}"} | params
        encoded = base64.b64encode(text.encode()).decode()
        call = self.client.start("transaction", body=encoded, exact="true", **params)
        call.wait_done()
        return call

    def close(self) -> None:
        """Stop what still runs."""
        for call in list(self._handles):
            self.stop(call)


SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Enter a function into the list of scenarios under its name."""
    SCENARIOS[function.__name__] = function
    return function


def play(name: str, client: JavaClient) -> Observed:
    """Play one scenario and return what the client saw."""
    stage = Stage(client, name.replace("_", "-"))
    try:
        return SCENARIOS[name](stage)
    finally:
        stage.close()
