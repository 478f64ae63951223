"""The row that looks for stalls: a steady load while everything rare goes on, again and again.

Segments, ConsumeQueue and index files are so small that each is full after some seconds; the disk
counts as too full, so that old segments are deleted all the time; checkpoints and consumer offsets
are saved by their clocks; and every few seconds a first message makes a topic.
"""

import os
import time
from typing import Any

from bench_brokers import QUEUES, TOPIC, BrokerProcess, Variant, request
from bench_generator import finish_generator, start_generator
from bench_halts import excuses, watch_halts
from bench_machine import BenchError, machine_busy_s, process_cpu_s
from bench_session import Session, load_details

RATE = 5_000

_TOPIC_EVERY_S = 2.0
_SEND_MESSAGE = 10
_SETTINGS = (
    ("mappedFileSizeCommitLog", 64_000_000),
    ("mappedFileSizeConsumeQueue", 60_000),
    ("maxHashSlotNum", 20_000),
    ("maxIndexNum", 100_000),
    ("cleanResourceInterval", 1_000),
    # More free bytes than any disk has: the disk is always too full, and takes messages still.
    ("diskExpireFreeBytes", 10**15),
    ("diskForceCleanFreeBytes", 10**15),
    ("cleanUnconsumedFilesEnable", "true"),
)


def stall(session: Session) -> tuple[float, dict[str, Any]]:
    """Return the longest time, in milliseconds, from when a message was due to its answer."""
    with session.fresh_broker("stall", Variant(settings=_SETTINGS)) as broker:
        broker.start()
        broker.create_topic(TOPIC)
        os.sync()
        with watch_halts(broker.home) as halts:
            details = _load(broker, session.timing.warmup_s, session.timing.stall_s)
        max_ms, p999_ms = details["max_us"] / 1000, details["p999_us"] / 1000
        details |= {"halts": halts, "excused": excuses(p999_ms, max_ms, halts)}
        return round(max_ms, 2), details


def _load(broker: BrokerProcess, warmup_s: float, seconds: float) -> dict[str, Any]:
    options = {"rate": RATE, "depth": 65_536, "topic": TOPIC, "queues": QUEUES}
    options |= {"warmup": warmup_s, "seconds": seconds, "server_pid": broker.pid}
    began_s, busy_s, own_s = time.monotonic(), machine_busy_s(), process_cpu_s(broker.pid)
    generator = start_generator("timetable", broker.port, **options)
    try:
        topics, oldest = 0, set[str]()
        until_s = time.monotonic() + warmup_s + seconds
        while time.monotonic() < until_s and generator.poll() is None:
            time.sleep(_TOPIC_EVERY_S)
            _send_first(broker.port, f"bench_stall_{topics}")
            topics += 1
            oldest.add(_segments(broker)[0])
    except BaseException:
        generator.kill()
        generator.wait()
        raise
    answer = finish_generator(generator, 120)
    cores = (machine_busy_s() - busy_s) / (time.monotonic() - began_s)
    cores -= (process_cpu_s(broker.pid) - own_s) / (time.monotonic() - began_s)
    answer["foreign_cores"] = round(max(cores - answer["own_cpu_s"] / answer["seconds"], 0.0), 2)
    if seconds > 60 and len(oldest) < 3:
        raise BenchError("old segments were not deleted during the load, so the row says nothing")
    rare = {"topics_made": topics, "segments_deleted": len(oldest) - 1}
    return load_details(answer, broker.memory()) | rare


def _segments(broker: BrokerProcess) -> list[str]:
    names = sorted(os.listdir(broker.home / "store" / "commitlog"))
    if not names:
        raise BenchError("the broker has no segments")
    return names


def _send_first(port: int, topic: str) -> None:
    """Send the first message to a topic that does not exist yet."""
    fields = {"producerGroup": "bench_stall", "topic": topic, "defaultTopic": "TBW102"}
    fields |= {"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "flag": "0"}
    fields |= {"bornTimestamp": str(int(time.time() * 1000)), "properties": ""}
    fields |= {"reconsumeTimes": "0", "unitMode": "false", "batch": "false"}
    answer, _body = request(port, _SEND_MESSAGE, fields, b"first")
    if answer["code"] != 0:
        raise BenchError(f"a first message to {topic} was refused: {answer}")
