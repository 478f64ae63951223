"""The stock C++ client, which the package `rocketmq` wraps, driven by text.

It speaks as tests/interop/java does: it reads lines `NUMBER COMMAND QUERY`, runs them side by side
and ends with its input. Each answer is a line of JSON with the number of its command; the last line
for a number has the event `done` or `error`.

Usage: python driver.py NAMESRV, with the package on the path, HOME where its logs may go, and
INTEROP_ACCESS_KEY and INTEROP_SECRET_KEY where it is to sign.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl

from rocketmq.client import (
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
)
from rocketmq.ffi import dll

Params = dict[str, str]

_AT_ONCE = 16
_ASYNC_TIMEOUT_S = 30.0
_output = threading.Lock()


def _event(number: int, name: str, **fields: object) -> None:
    line = json.dumps({"id": number, "event": name, **fields}, separators=(",", ":"))
    with _output:
        print(line, flush=True)


def _message(params: Params, i: int) -> Message:
    message = Message(params["topic"])
    message.set_body(params["body"] + (f"#{i}" if "count" in params else ""))
    if "tags" in params:
        tags = params["tags"].split(",")
        message.set_tags(tags[i % len(tags)])
    if "keys" in params:
        message.set_keys(params["keys"].replace("{i}", str(i)))
    if "level" in params:
        message.set_delay_time_level(int(params["level"]))
    for name, value in params.items():
        if name.startswith("property."):
            message.set_property(name.removeprefix("property."), value.replace("{i}", str(i)))
    return message


def _prove(client: Producer | PushConsumer | PullConsumer) -> None:
    """Have a client sign, where there is a user."""
    user = os.environ.get("INTEROP_ACCESS_KEY")
    if user:
        client.set_session_credentials(user, os.environ["INTEROP_SECRET_KEY"], "ALIYUN")


class Driver:
    """The clients of this process and what the tests may ask of them."""

    def __init__(self, namesrv: str) -> None:
        """Use this name server."""
        self._namesrv = namesrv
        self._producer = Producer("PG-cpp")
        self._producer.set_namesrv_addr(namesrv)
        _prove(self._producer)
        self._producer.start()
        self._consumers: dict[int, PushConsumer] = {}

    def send(self, number: int, params: Params) -> None:
        """Send `count` messages the way `mode` names."""
        messages = [_message(params, i) for i in range(int(params.get("count", "1")))]
        mode = params.get("mode", "sync")
        if mode == "batch":
            self._sent(number, self._producer.send_batch(messages))
            return
        for message in messages:
            if mode == "sync":
                self._sent(number, self._producer.send_sync(message))
            elif mode == "orderly":
                self._sent(number, self._producer.send_orderly(message, int(params["shard"])))
            elif mode == "oneway":
                self._producer.send_oneway(message)
            else:
                self._send_async(number, message)

    def _send_async(self, number: int, message: Message) -> None:
        ended = threading.Event()
        errors: list[Exception] = []

        def failed(error: Exception) -> None:
            errors.append(error)
            ended.set()

        def succeeded(result: Any) -> None:
            self._sent(number, result)
            ended.set()

        self._producer.send_async(message, succeeded, failed)
        if not ended.wait(_ASYNC_TIMEOUT_S):
            raise TimeoutError("no callback was called")
        if errors:
            raise errors[0]

    def _sent(self, number: int, result: Any) -> None:
        _event(
            number,
            "sent",
            status=int(result.status),
            msgId=result.msg_id,
            queueOffset=result.offset,
        )

    def push(self, number: int, params: Params) -> None:
        """Start a push consumer; messages with `failKeys` fail `fail` times."""
        group = params["group"]
        is_broadcasting = params.get("model") == "BROADCASTING"
        model = MessageModel.BROADCASTING if is_broadcasting else MessageModel.CLUSTERING
        consumer = PushConsumer(group, orderly="orderly" in params, message_model=model)
        consumer.set_namesrv_addr(self._namesrv)
        _prove(consumer)
        consumer.set_instance_name(f"driver-{number}")
        consumer.set_thread_count(4)
        consumer.set_message_batch_max_size(1)
        failing = set(params.get("failKeys", "").split(",")) - {""}
        failures: Counter[str] = Counter()

        def listen(message: RecvMessage) -> None:
            self._show(number, message)
            keys = (message.keys or b"").decode()
            if keys in failing and failures[keys] < int(params.get("fail", "0")):
                failures[keys] += 1
                raise ValueError(f"{keys} fails as the test wants")

        consumer.subscribe(params["topic"], listen, params.get("expression", "*"))
        consumer.start()
        self._consumers[number] = consumer

    def pull(self, number: int, params: Params) -> None:
        """Pull all that a topic has from its beginning."""
        consumer = PullConsumer(params["group"])
        consumer.set_namesrv_addr(self._namesrv)
        _prove(consumer)
        consumer.start()
        for message in consumer.pull(params["topic"], params.get("expression", "*")):
            self._show(number, message)
        consumer.shutdown()

    def stop(self, number: int, params: Params) -> None:
        """Shut a push consumer down."""
        self._consumers.pop(int(params["handle"])).shutdown()

    def close(self) -> None:
        """Shut everything down."""
        for consumer in self._consumers.values():
            consumer.shutdown()
        self._producer.shutdown()

    def _show(self, number: int, message: RecvMessage) -> None:
        _event(
            number,
            "message",
            topic=message.topic,
            queueId=message.queue_id,
            queueOffset=message.queue_offset,
            msgId=message.id,
            body=base64.b64encode(message.body).decode(),
            tags=(message.tags or b"").decode(),
            keys=(message.keys or b"").decode(),
            reconsumeTimes=message.reconsume_times,
            bornTimestamp=_milliseconds(dll.GetMessageBornTimestamp, message),
            storeTimestamp=_milliseconds(dll.GetMessageStoreTimestamp, message),
            colour=(message.get_property("colour") or b"").decode(),
        )


def _milliseconds(function: Any, message: RecvMessage) -> int:
    """Call a function whose result the wrapper would cut to 32 bits."""
    function.restype = ctypes.c_longlong
    return int(function(message._handle))


def _run(command: Callable[[int, Params], None], number: int, query: str) -> None:
    params = dict(parse_qsl(query, keep_blank_values=True))
    try:
        command(number, params)
    except Exception as error:
        # Whatever it is, the test that waits for the answer fails with it.
        _event(number, "error", kind=type(error).__name__, text=str(error))
    else:
        _event(number, "done")


def main() -> None:
    """Run commands until the input ends."""
    driver = Driver(sys.argv[1])
    commands = {
        "send": driver.send,
        "push": driver.push,
        "pull": driver.pull,
        "stop": driver.stop,
    }
    _event(0, "ready")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for line in sys.stdin:
            number, command, query = (line.rstrip("\n") + "  ").split(" ")[:3]
            pool.submit(_run, commands[command], int(number), query)
    driver.close()
    sys.stdout.flush()
    # The library's threads may outlive their clients.
    os._exit(0)


if __name__ == "__main__":
    main()
