"""mailboat's client at work: prints one line of JSON a window, until it is killed.

Run by bench_client.py as `python client_loop.py WORK NAME=VALUE ...`; BenchClient.java does the
same with the Java client.
"""

import asyncio
import contextlib
import importlib
import json
import sys
import time

from mailboat.client import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    StartPoint,
)
from mailboat.errors import MailboatError


async def _send(options: dict[str, str], *, batch: int) -> None:
    topic, body = options["topic"], b"b" * int(options["body"])
    count, failures = 0, 0
    async with Producer("bench_client", namesrv=options["namesrv"]) as producer:

        async def task() -> None:
            nonlocal count, failures
            while True:
                try:
                    if batch > 1:
                        messages = [Message(topic, body, tags="TagA") for _ in range(batch)]
                        await producer.send_batch(messages)
                    else:
                        await producer.send(Message(topic, body, tags="TagA"))
                    count += batch
                except MailboatError as error:
                    print(error, file=sys.stderr, flush=True)
                    failures += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(int(options["tasks"])):
                tasks.create_task(task())
            while True:
                began_s, cpu_s, before = time.monotonic(), time.process_time(), count
                await asyncio.sleep(float(options["seconds"]))
                elapsed_s, spent_s = time.monotonic() - began_s, time.process_time() - cpu_s
                _tell(count - before, elapsed_s, spent_s, failures)
                failures = 0


async def _drain(options: dict[str, str]) -> None:
    """Read everything from the first offset, in one new group after the other."""
    while True:
        await _drain_once(options)


async def _drain_once(options: dict[str, str]) -> None:
    wanted, done = int(options["count"]), asyncio.Event()
    count, began_s, cpu_s = 0, 0.0, 0.0

    async def take(messages: list[MessageExt]) -> None:
        nonlocal count, began_s, cpu_s
        if not count:
            began_s, cpu_s = time.monotonic(), time.process_time()
        count += len(messages)
        if count >= wanted:
            done.set()

    consumer = PushConsumer(
        f"bench_drain_{time.time_ns()}",
        namesrv=options["namesrv"],
        start_point=StartPoint(ConsumeFromWhere.FIRST_OFFSET),
    )
    consumer.subscribe(options["topic"], "*", take)
    async with consumer:
        await done.wait()
        _tell(count, time.monotonic() - began_s, time.process_time() - cpu_s, failures=0)


def _tell(messages: int, seconds: float, cpu_s: float, failures: int) -> None:
    window = {"messages": messages, "seconds": seconds, "cpu_s": cpu_s, "failures": failures}
    print(json.dumps(window), flush=True)


def _main() -> None:
    work, options = sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])
    # As the commands do, which are this client, too.
    loop_factory = None
    with contextlib.suppress(ImportError):
        loop_factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        if work == "drain":
            runner.run(_drain(options))
        else:
            runner.run(_send(options, batch=int(options["batch"]) if work == "batch" else 1))


if __name__ == "__main__":
    _main()
