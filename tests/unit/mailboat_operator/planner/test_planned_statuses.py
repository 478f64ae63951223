"""What is planned as status against the schema: what the schema lacks, the API server drops."""

import json
from collections.abc import Iterator
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
from mailboat_operator.planner.snapshot import Children, NameServerSnapshot, TopicSnapshot
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
