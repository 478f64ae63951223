"""What is planned as status against the schema: what the schema lacks, the API server drops."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from model_cluster import BROKEN_IMAGE, ModelCluster, settle
from operator_samples import BROKER_SPEC, sample_broker, sample_name_server, sample_topic
from volume_world import HOUR_S, World

from mailboat_operator.crds.definitions import custom_resource_definitions
from mailboat_operator.errors import InvalidResourceError
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.broker_status import invalid_status
from mailboat_operator.planner.name_server import plan_name_server
from mailboat_operator.planner.snapshot import (
    BrokerSnapshot,
    Children,
    NameServerSnapshot,
    TopicSnapshot,
)
from mailboat_operator.planner.topic import plan_topic

SCHEMAS: dict[str, dict[str, Any]] = {
    item["spec"]["names"]["kind"]: item["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
        "properties"
    ]["status"]
    for item in custom_resource_definitions()
}


def broker_statuses() -> Iterator[dict[str, Any]]:
    """Yield the statuses of a Broker that is made, whose roll is stuck, and that shrinks."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    seen: list[dict[str, Any]] = []
    for change in ({}, {"image": BROKEN_IMAGE}, {"image": "mailboat:2"}, {"groups": 1}):
        cluster.change(**change)
        settle(cluster, plan_broker, check=lambda model: seen.append(model.status))
    yield from seen


def volume_statuses() -> Iterator[dict[str, Any]]:
    """Yield the statuses of volumes that fill, grow, cannot grow, and whose broker is silent."""
    world = World(autoGrow={"enabled": True, "maxSize": "40Gi"})
    world.use(82.0, per_s=100_000.0)
    world.turn(after_s=15.0)
    yield as_written(world.status)
    world.finish_growth()
    world.spec["storage"]["size"] = "39Gi"
    world.turn(after_s=15.0)
    world.refuse_growth()
    world.turn(after_s=15.0)
    yield as_written(world.status)
    world.use(92.0)
    world.turn(after_s=15.0)
    yield as_written(world.status)
    world.silence(kubelet_percent=50.0)
    world.turn(after_s=HOUR_S)
    yield as_written(world.status)


def as_written(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status as its JSON has it."""
    written: dict[str, Any] = json.loads(json.dumps(status))
    return written


def name_server_statuses() -> Iterator[dict[str, Any]]:
    """Yield the status of a NameServer that is about to be made."""
    snapshot = NameServerSnapshot(sample_name_server(), Children(), "mailboat:1", 1.7e9)
    yield plan_name_server(snapshot).status


def topic_statuses() -> Iterator[dict[str, Any]]:
    """Yield the statuses of a Topic that a broker has, lacks, and does not speak of."""
    live = {"read_queue_nums": 8, "write_queue_nums": 8, "perm": 6, "queues": []}
    for topics in ({"orders-g0": live}, {"orders-g0": None}, {}):
        endpoints = dict.fromkeys(topics, "http://10.0.0.1:8080")
        snapshot = TopicSnapshot(sample_topic(), sample_broker(), endpoints, topics, 1.7e9)
        yield plan_topic(snapshot).status


def invalid_statuses() -> Iterator[dict[str, Any]]:
    """Yield the status of a resource that nobody can read."""
    error = InvalidResourceError("Broker shop/orders", "spec.storage", "is missing")
    yield invalid_status({}, error, generation=3, now_s=1.7e9)


PLANNED = {
    "Broker": (broker_statuses, volume_statuses, invalid_statuses),
    "NameServer": (name_server_statuses, invalid_statuses),
    "Topic": (topic_statuses, invalid_statuses),
}


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field that a value has."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from fields(item, path)
    if isinstance(value, dict):
        for name, child in value.items():
            yield f"{path}.{name}"
            yield from fields(child, f"{path}.{name}")


def known(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the path of every field that a schema has."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from known(child.get("items", child), f"{path}.{name}")


@pytest.mark.parametrize("kind", PLANNED)
def test_no_planned_status_is_pruned(kind: str):
    """Every field is in the schema, and every value is one that the schema takes."""
    statuses = [status for make in PLANNED[kind] for status in make()]
    planned = {field for status in statuses for field in fields(status)}
    assert planned - set(known(SCHEMAS[kind])) == set()
    check = jsonschema.Draft7Validator(SCHEMAS[kind])
    assert [error.message for status in statuses for error in check.iter_errors(status)] == []


def test_the_situations_are_telling():
    """The fields that only a volume in trouble has are among those that are checked."""
    planned = {field for status in volume_statuses() for field in fields(status)}
    names = ("lastGrowthTime", "infeasibleSize", "lastRefusalTime", "timeToFull", "numbersFrom")
    assert {f".storage.{name}" for name in names} <= planned


def observed(cluster: ModelCluster, pod: str, **said: Any) -> BrokerSnapshot:
    """Return a snapshot in which one broker says something odd."""
    snapshot = cluster.snapshot()
    observations = dict(snapshot.observations)
    observations[pod] = replace(observations[pod], **said)
    return replace(snapshot, observations=observations)


def odd_snapshots() -> Iterator[BrokerSnapshot]:
    """Yield what brokers of any kind may say, and a spec with nothing but mistakes."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    settle(cluster, plan_broker)
    volume = {"capacity_bytes": 10, "used_bytes": 5, "available_bytes": 5}
    volume |= {"inodes_total": 1, "inodes_used": 9}
    far_ms = (1 << 63) - 1
    retention = {"max_physical_offset": 1, "volume": volume, "oldest_message_timestamp_ms": far_ms}
    yield observed(cluster, "orders-g0-0", retention=retention)
    yield observed(cluster, "orders-g0-0", broker={"phase": "x" * 253})
    name_servers = [{"address": "a" * 1024, "held_by": "b" * 40_000}] * 50
    yield observed(cluster, "orders-g0-0", broker={"name_servers": name_servers})
    cluster.change(config={f"{'k' * 300}{number}": "x" * 1024 for number in range(100)})
    yield cluster.snapshot()
    cluster.change(config={"flushDiskType": "x" * 1024}, groups=1)
    for text in ("\N{SUPERSCRIPT TWO}", "9" * 5000, ""):
        config = {"brokerPermission": text}
        yield observed(cluster, "orders-g1-0", config=config)


def test_nothing_that_a_broker_says_keeps_the_status_from_being_written():
    """A plan is made and its status is one that the API server takes, whatever is in it."""
    check = jsonschema.Draft7Validator(SCHEMAS["Broker"])
    for snapshot in odd_snapshots():
        status = as_written(plan_broker(snapshot).status)
        assert [error.message[-200:] for error in check.iter_errors(status)] == []
