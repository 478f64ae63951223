"""Scenarios of transactions, of offsets and members of groups, of traces and refusals."""

from __future__ import annotations

from interop_client import Event, JavaCall
from interop_scenarios import (
    CHECK_MAX,
    Observed,
    Stage,
    bodies,
    body,
    outcome,
    scenario,
    seen,
)

_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def _checks(producer: JavaCall, count: int) -> list[Event]:
    producer.wait(lambda events: sum(e["event"] == "check" for e in events) >= count, 40)
    return producer.events("check")


def _check(event: Event) -> Observed:
    return seen(event) | {
        "number": event["number"],
        "transactionId": event["transactionId"] == event["properties"].get("UNIQ_KEY"),
    }


def _half(producer: JavaCall) -> Observed:
    (sent,) = producer.events("sent")
    return {
        "status": sent["status"],
        "localState": sent["localState"],
        "queueId": sent["queueId"],
        "transactionId": sent["transactionId"] == sent["msgId"],
    }


@scenario
def transaction_outcomes(stage: Stage) -> Observed:
    """Commit, rollback, and unknown until a check commits, commits late or rolls back."""
    stage.create_topic()
    consumer = stage.push()
    answers = {
        "commit": {"local": "COMMIT_MESSAGE"},
        "rollback": {"local": "ROLLBACK_MESSAGE"},
        "checked": {"checks": "COMMIT_MESSAGE"},
        "twice": {"checks": "UNKNOW,COMMIT_MESSAGE"},
        "undone": {"checks": "ROLLBACK_MESSAGE"},
    }
    producers = {
        name: stage.producer(name, tags="red", keys=name, **{"property.colour": "blue"} | params)
        for name, params in answers.items()
    }
    _checks(producers["undone"], 1)
    messages = consumer.wait_messages(3)
    for message in messages:
        # A round of checks may cross with the answer to the last one.
        message["properties"].pop("TRANSACTION_CHECK_TIMES", None)
    needed = {"commit": None, "rollback": None, "checked": 1, "twice": 2, "undone": 1}
    return {
        "sent": {name: _half(producer) for name, producer in producers.items()},
        "messages": [seen(message) for message in sorted(messages, key=body)],
        "same ids": sorted(message["msgId"] for message in messages)
        == sorted(
            producers[name].events("sent")[0]["msgId"] for name in ("commit", "checked", "twice")
        ),
        "checks": {
            name: [_check(event) for event in producer.events("check")[: needed[name]]]
            for name, producer in producers.items()
        },
    }


@scenario
def transaction_never_ended(stage: Stage) -> Observed:
    """A half message that nobody ends is checked so often and then set aside."""
    stage.create_topic()
    producer = stage.producer("endless", tags="red", keys="k")
    checks = _checks(producer, CHECK_MAX)
    aside = stage.stored("TRANS_CHECK_MAX_TIME_TOPIC")
    return {
        "numbers": [event["number"] for event in checks],
        "times": [event["properties"].get("TRANSACTION_CHECK_TIMES") for event in checks],
        "aside": [seen(message) for message in aside if body(message) == "endless"],
    }


@scenario
def transaction_other_producer(stage: Stage) -> Observed:
    """When its producer is gone another one of the group is asked."""
    stage.create_topic()
    consumer = stage.push()
    heir = stage.producer("lost", count=0, checks="COMMIT_MESSAGE")
    # It is there first: a message is checked so often and then given up, whoever is there.
    lost = stage.producer("lost")
    stage.client.call("transaction_stop", handle=lost.number)
    checks = _checks(heir, 1)[:1]
    messages = consumer.wait_messages(1)
    for message in messages:
        # How often the lost producer was asked before depends on when its connection ended.
        message["properties"].pop("TRANSACTION_CHECK_TIMES", None)
    return {
        "checks": [body(event) for event in checks],
        "messages": [seen(message) for message in messages],
    }


@scenario
def transaction_immunity(stage: Stage) -> Observed:
    """A message asks to be left alone by checks for longer than the broker's own time."""
    stage.create_topic()
    consumer = stage.push()
    patient = stage.producer(
        "patient", checks="COMMIT_MESSAGE", **{"property.CHECK_IMMUNITY_TIME_IN_SECONDS": 2}
    )
    checks = _checks(patient, 1)[:1]
    messages = consumer.wait_messages(1)
    for message in (*checks, *messages):
        # RocketMQ counts the rounds in which it left the message alone.
        message["properties"].pop("TRANSACTION_CHECK_TIMES", None)
    return {
        "checks": [_check(event) for event in checks],
        "messages": [seen(message) for message in messages],
        "_waited_ms": messages[0]["storeTimestamp"] - messages[0]["bornTimestamp"],
    }


def _consumed(stage: Stage, count: int) -> None:
    """Have the group consume so many messages, store its offsets and leave."""
    consumer = stage.push(orderly="true")
    consumer.wait_messages(count)
    stage.stop(consumer)


def _wait_refreshed(stage: Stage, consumer: JavaCall, count: int) -> list[Event]:
    """Wait for messages of a queue that its consumer gave up until it rebalances, after 20 s."""
    for _ in range(60):
        try:
            return consumer.wait_messages(count, 1)
        except TimeoutError:
            stage.client.call("refresh", handle=consumer.number)
    return consumer.wait_messages(count)


def _offsets(events: list[Event]) -> list[tuple[int, int]]:
    return sorted((event["queueId"], event["queueOffset"]) for event in events)


@scenario
def reset_by_time(stage: Stage) -> Observed:
    """A group that is online goes back to a time and consumes from there again."""
    stage.create_topic()
    stage.send("old", count=3, queue=0)
    _consumed(stage, 3)
    stage.send("new", count=2, queue=0)
    consumer = stage.push(orderly="true")
    new = consumer.wait_messages(2)
    reset = stage.client.call(
        "reset_offset",
        topic=stage.topic,
        group=stage.group,
        timestamp=min(message["storeTimestamp"] for message in new),
    )
    messages = _wait_refreshed(stage, consumer, 4)
    return {"reset": _offsets(reset), "bodies": bodies(messages)}


@scenario
def reset_offline(stage: Stage) -> Observed:
    """A group without members is set back."""
    stage.create_topic()
    stage.send("old", count=3, queue=0)
    _consumed(stage, 3)
    result = outcome(
        stage.client, "reset_offset", topic=stage.topic, group=stage.group, timestamp=0
    )
    stage.send("new", queue=0)
    consumer = stage.push(orderly="true")
    consumer.wait(lambda events: any("body" in e and body(e) == "new" for e in events), 40)
    return {"result": result, "bodies": bodies(consumer.events("message"))}


@scenario
def clone_offsets(stage: Stage) -> Observed:
    """A group takes over the offsets of another one and begins where that one was."""
    stage.create_topic()
    stage.send("old", count=3, queue=0)
    _consumed(stage, 3)
    stage.send("new", count=2, queue=0)
    clone = f"{stage.group}-clone"
    stage.client.call("create_group", group=clone)
    stage.client.call(
        "clone_offset", topic=stage.topic, source=stage.group, destination=clone, offline="true"
    )
    consumer = stage.push(group=clone, orderly="true")
    return {"bodies": bodies(consumer.wait_messages(2))}


@scenario
def members(stage: Stage) -> Observed:
    """An administrator asks for a member, its running info and offsets, and has it consume."""
    stage.create_topic(2)
    consumer = stage.push(queues=2, expression="red || green")
    (sent,) = stage.send("direct", tags="red", keys="k", queue=1)
    consumer.wait_messages(1)
    names = {"topic": stage.topic, "group": stage.group}
    (member,) = stage.client.call("members", **names)
    client = member.pop("client")
    (running,) = stage.client.call("running_info", client=client, jstack="true", **names)
    status = stage.client.call("consumer_status", **names)
    direct = stage.client.call(
        "consume_directly", client=client, msgId=sent["offsetMsgId"], **names
    )
    messages = consumer.wait_messages(2)
    return {
        "member": {key: member[key] for key in ("language", "consumeType", "messageModel")},
        "properties": {
            key: value
            for key, value in running["properties"].items()
            if key in ("PROP_CONSUMEORDERLY", "PROP_CONSUME_TYPE", "PROP_THREADPOOL_CORE_SIZE")
        },
        "subscriptions": running["subscriptions"],
        "queues": [(queue["topic"], queue["queueId"]) for queue in running["queues"]],
        "jstack": running["jstack"],
        # Whether the queue without messages is listed depends on the moment.
        "status": [place for place in _offsets(status) if place[0] == 1],
        "status clients": {event["client"] for event in status} == {client},
        "direct": [{key: event[key] for key in ("result", "order")} for event in direct],
        "messages": [seen(message) for message in messages],
    }


@scenario
def message_trace(stage: Stage) -> Observed:
    """Producer and consumer with the trace on leave their records in the trace topic."""
    stage.create_topic()
    witness = stage.start("push", topic=_TRACE_TOPIC, group=f"{stage.group}-witness")
    consumer = stage.push(trace="true")
    (sent,) = stage.send("traced", tags="red", keys="k", trace="true", group=f"P-{stage.name}-on")
    consumer.wait_messages(1)

    def records(events: list[Event]) -> list[list[str]]:
        return [
            record.split("\x01")
            for event in events
            if event["event"] == "message" and sent["msgId"] in body(event)
            for record in body(event).split("\x02")
            if sent["msgId"] in record
        ]

    kinds = {"Pub", "SubBefore", "SubAfter"}
    witness.wait(lambda events: {record[0] for record in records(events)} >= kinds, 40)
    found = {record[0]: record for record in records(witness.events("message"))}
    return {
        "traceOn": sent["traceOn"],
        "fields": {kind: len(record) for kind, record in sorted(found.items())},
        # Region, group, topic, then tags and keys; and whether the consumption went well.
        "published": found["Pub"][2:5] + found["Pub"][6:8],
        "consumed": found["SubBefore"][3],
        "success": found["SubAfter"][4],
    }


@scenario
def refusals(stage: Stage) -> Observed:
    """What clients are told when they ask for what cannot be."""
    stage.create_topic()
    (sent,) = stage.send("present", keys="present")
    client, topic, group = stage.client, stage.topic, stage.group
    absent = sent["offsetMsgId"][:-16] + "00000000FFFFFF00"
    nowhere = f"T-{stage.name}-nowhere"
    long = {"topic": topic, "body": "", "property.long": "x" * 33_000}
    wrong_queue = {"topic": topic, "body": "", "queue": 99, "broker": sent["brokerName"]}
    return {
        "properties too long": outcome(client, "send", **long),
        "wrong queue": outcome(client, "send", **wrong_queue),
        "absent id": outcome(client, "view", topic=topic, msgId=absent),
        "absent key": outcome(client, "query_key", topic=topic, key="absent"),
        "unknown topic's queues": outcome(client, "offsets", topic=nowhere),
        "unknown topic's route": outcome(client, "route", topic=nowhere),
        "offline group's members": outcome(client, "members", group=group),
        "offline group's status": outcome(client, "consumer_status", topic=topic, group=group),
        "offline member": outcome(client, "running_info", group=group, client="nobody"),
        "unknown topic's reset": outcome(client, "reset_offset", topic=nowhere, group=group),
        "unknown group's clone": outcome(
            client, "clone_offset", topic=topic, source=group, destination=f"{group}-clone"
        ),
    }
