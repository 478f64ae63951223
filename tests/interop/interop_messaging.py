"""Scenarios of messages: delay, retry, dead letters, order, broadcasting, filters, requests."""

from __future__ import annotations

import base64
import itertools
from collections import defaultdict
from typing import Any

from interop_client import Event, JavaCall, JavaClientError
from interop_scenarios import DELAY_S, Observed, Stage, bodies, body, outcome, scenario, seen

# Property a of the i-th message of the SQL scenarios is i; these are the expressions asked for.
SQL_EXPRESSIONS = (
    "a > 3",
    "a BETWEEN 2 AND 4",
    "a NOT BETWEEN 2 AND 4",
    "a = 1 OR a = 5",
    "NOT (a = 1)",
    "a > 1.5 AND a <= 3.0",
    "TAGS = 'red' AND a >= 2",
    "TAGS IN ('green', 'blue')",
    "TAGS NOT IN ('green', 'blue')",
    "text = 'it''s 3'",
    "missing IS NULL AND a < 2",
    "missing = 'x'",
    "missing <> 'x'",
    "missing = 'x' OR a = 2",
    "text IS NOT NULL AND a = 0",
    "text > 3",
    "TRUE AND a = 4",
    "a = 3 -- the third\n",
)


def _order(messages: list[Event]) -> dict[str, list[str]]:
    """The bodies of each queue in the order in which they were consumed."""
    queues: defaultdict[str, list[str]] = defaultdict(list)
    for message in messages:
        queues[str(message["queueId"])].append(body(message))
    return dict(sorted(queues.items()))


def _attempts(messages: list[Event]) -> list[list[Any]]:
    return [[message["keys"], message["reconsumeTimes"]] for message in messages]


def _route(stage: Stage, topic: str) -> Observed:
    (route,) = stage.client.call("route", topic=topic)
    return {name: route[name] for name in ("readQueueNums", "writeQueueNums", "perm")}


def _await_body(consumer: JavaCall, text: str) -> None:
    consumer.wait(lambda events: any("body" in e and body(e) == text for e in events), 40)


def _waits_s(messages: list[Event]) -> list[float]:
    """From each delivery to the storing of the next one, in seconds."""
    pairs = itertools.pairwise(messages)
    return [
        (after["storeTimestamp"] - before["receivedTimestamp"]) / 1000 for before, after in pairs
    ]


@scenario
def delay_levels(stage: Stage) -> Observed:
    """Messages of several levels, one above the table, sent in another order than they are due."""
    stage.create_topic()
    consumer = stage.push()
    levels = {"second": 2, "above": 99, "first": 1, "none": 0}
    sent = [
        *(stage.send(text, level=level, tags="red", keys=text)[0] for text, level in levels.items())
    ]
    messages = consumer.wait_messages(len(levels))
    due_s = {"second": DELAY_S[2], "above": DELAY_S[18], "first": DELAY_S[1], "none": 0}
    late_ms = {
        body(m): m["storeTimestamp"] - m["bornTimestamp"] - 1000 * due_s[body(m)] for m in messages
    }
    return {
        "sent": [{key: event[key] for key in ("status", "topic", "queueId")} for event in sent],
        "messages": [seen(message) for message in sorted(messages, key=body)],
        "same ids": sorted(e["msgId"] for e in sent) == sorted(m["msgId"] for m in messages),
        "_late_ms": late_ms,
    }


@scenario
def retry_until_success(stage: Stage) -> Observed:
    """A consumer fails a message twice and then takes it."""
    stage.create_topic()
    consumer = stage.push(fail=2)
    stage.send("again", tags="red", keys="k", flag=5, **{"property.colour": "blue"})
    messages = consumer.wait_messages(3)
    return {
        "messages": [seen(message) for message in messages],
        "ids": len({message["msgId"] for message in messages}),
        "retry topic": _route(stage, f"%RETRY%{stage.group}"),
        "_waits_s": _waits_s(messages),
    }


@scenario
def retry_at_a_chosen_level(stage: Stage) -> Observed:
    """The listener says with which delay level the failed message is to come back."""
    stage.create_topic()
    consumer = stage.push(fail=1, level=2)
    stage.send("later", keys="k")
    messages = consumer.wait_messages(2)
    return {"messages": [seen(message) for message in messages], "_waits_s": _waits_s(messages)}


@scenario
def retry_of_one_in_many(stage: Stage) -> Observed:
    """One failing message in a row does not hold up the others."""
    stage.create_topic()
    consumer = stage.push(fail=1, failKeys="k2")
    stage.send("row", count=6, keys="k{i}")
    messages = consumer.wait_messages(7)
    return {
        "attempts": sorted(_attempts(messages)),
        "last": _attempts(messages)[-1],
    }


@scenario
def dead_letter(stage: Stage) -> Observed:
    """A message that fails more often than the group allows ends in the dead-letter topic."""
    stage.create_topic()
    consumer = stage.push(fail=99, maxReconsume=1)
    stage.send("hopeless", tags="red", keys="k", **{"property.colour": "blue"})
    delivered = consumer.wait_messages(2)
    letters = f"%DLQ%{stage.group}"
    dead = stage.stored(letters)
    return {
        "attempts": _attempts(delivered),
        "dead": [seen(message) for message in dead],
        "same id": {m["msgId"] for m in dead} == {m["msgId"] for m in delivered},
        "dead letter topic": _route(stage, letters),
    }


@scenario
def dead_letter_at_once(stage: Stage) -> Observed:
    """A listener's delay level of -1 sends the message to the dead letters without a retry."""
    stage.create_topic()
    consumer = stage.push(fail=99, level=-1)
    stage.send("poison", keys="k")
    consumer.wait_messages(1)
    dead = stage.stored(f"%DLQ%{stage.group}")
    return {
        "attempts": _attempts(consumer.events("message")),
        "dead": [seen(message) for message in dead],
    }


@scenario
def dead_letters_are_consumed(stage: Stage) -> Observed:
    """A consumer of the dead-letter topic gets the dead letters."""
    stage.create_topic()
    consumer = stage.push(fail=99, level=-1)
    stage.send("dead", count=3, keys="k{i}", tags="red")
    consumer.wait_messages(3)
    letters = f"%DLQ%{stage.group}"
    stage.stored(letters, 3)
    undertaker = stage.push(topic=letters, group=f"{stage.group}-dead")
    messages = undertaker.wait_messages(3)
    return {"messages": [seen(message) for message in sorted(messages, key=body)]}


@scenario
def orderly(stage: Stage) -> Observed:
    """An orderly consumer gets each queue in the order in which it was sent."""
    stage.create_topic(4)
    for queue in range(4):
        stage.send(f"q{queue}", count=5, queue=queue)
    consumer = stage.push(queues=4, orderly="true")
    consumer.wait_messages(20)
    for queue in range(4):
        stage.send(f"later{queue}", count=3, queue=queue)
    return {"order": _order(consumer.wait_messages(32))}


@scenario
def orderly_retry_in_place(stage: Stage) -> Observed:
    """A failing message of an orderly consumer is tried again before those behind it."""
    stage.create_topic()
    consumer = stage.push(orderly="true", fail=2, failKeys="k2")
    stage.send("row", count=5, keys="k{i}")
    messages = consumer.wait_messages(7)
    return {"attempts": _attempts(messages), "messages": [seen(m) for m in messages]}


@scenario
def orderly_dead_letter(stage: Stage) -> Observed:
    """After its last attempt an orderly message becomes a dead letter and the queue goes on."""
    stage.create_topic()
    consumer = stage.push(orderly="true", fail=99, failKeys="k1", maxReconsume=1)
    stage.send("row", count=4, keys="k{i}", tags="red")
    messages = consumer.wait_messages(5)
    dead = stage.stored(f"%DLQ%{stage.group}")
    return {"attempts": _attempts(messages), "dead": [seen(message) for message in dead]}


@scenario
def orderly_members(stage: Stage) -> Observed:
    """A second orderly member takes half of the queues, and all when the first one leaves."""
    stage.create_topic(4)
    first = stage.push(queues=4, orderly="true", instance="orderly-1")
    for queue in range(4):
        stage.send(f"a{queue}", count=3, queue=queue)
    first.wait_messages(12)
    second = stage.start("push", orderly="true", instance="orderly-2")
    stage.await_queues(first, 2)
    stage.await_queues(second, 2)
    for queue in range(4):
        stage.send(f"b{queue}", count=3, queue=queue)
    first.wait_messages(18)
    second.wait_messages(6)
    shares = [len(_order(each.events("message")[-6:])) for each in (first, second)]
    stage.stop(first)
    stage.await_queues(second, 4)
    for queue in range(4):
        stage.send(f"c{queue}", count=3, queue=queue)
    second.wait_messages(18)
    messages = first.events("message") + second.events("message")
    return {"shares": shares, "order": _order(messages)}


@scenario
def suspended(stage: Stage) -> Observed:
    """A consumer that is suspended takes no more messages until it is resumed."""
    stage.create_topic()
    consumer = stage.push()
    witness = stage.push(group=f"{stage.group}-witness")
    stage.client.call("suspend", handle=consumer.number)
    # The pull that the broker holds already may still bring this one.
    stage.send("held")
    _await_body(witness, "held")
    stage.send("later")
    _await_body(witness, "later")
    while_suspended = bodies(consumer.events("message"))
    stage.client.call("resume", handle=consumer.number)
    _await_body(consumer, "later")
    return {
        "later while suspended": "later" in while_suspended,
        "bodies": sorted(bodies(consumer.wait_messages(2))),
    }


@scenario
def broadcasting_failures(stage: Stage) -> Observed:
    """Broadcasting members each get everything once, failed or not; the broker keeps no offset."""
    stage.create_topic()
    members = [
        stage.push(model="BROADCASTING", instance=f"broadcast-{i}", fail=9) for i in range(2)
    ]
    stage.send("one")
    for member in members:
        member.wait_messages(1)
    # A failed message of a group would be back after a second: later messages show the time.
    stage.send("two", level=2)
    for member in members:
        member.wait_messages(2)
    committed = stage.client.call("committed", topic=stage.topic, group=stage.group)
    return {
        "members": [bodies(member.events("message")) for member in members],
        "reconsumeTimes": sorted(
            {m["reconsumeTimes"] for each in members for m in each.events("message")}
        ),
        "committed": [event["committed"] for event in committed],
    }


def _send_for_sql(stage: Stage) -> None:
    stage.create_topic()
    properties: Observed = {"property.a": "{i}", "property.text": "it's {i}"}
    stage.send("sql", count=6, keys="k{i}", tags="red,green,blue", queue=0, **properties)
    # One message without the properties, and one whose number is none.
    stage.send("bare", keys="bare", queue=0)
    stage.send("word", keys="word", queue=0, **{"property.a": "word"})
    stage.client.call("await_stored", topic=stage.topic, count=8, timeout=30)


@scenario
def sql_pull(stage: Stage) -> Observed:
    """Pulls with SQL expressions get exactly the messages for which these are true."""
    _send_for_sql(stage)
    found = {}
    for expression in SQL_EXPRESSIONS:
        events = stage.client.call("pull", topic=stage.topic, all="true", sql=expression)
        found[expression] = [event["keys"] for event in events]
    return found


@scenario
def sql_push(stage: Stage) -> Observed:
    """A push consumer with an SQL selector gets old and new messages that match; others refused."""
    _send_for_sql(stage)
    consumer = stage.push(sql="a >= 2 AND TAGS <> 'green'")
    consumer.wait_messages(3)
    stage.send("new", count=6, keys="n{i}", tags="red", **{"property.a": "{i}"})
    messages = consumer.wait_messages(7)
    refused: Observed = {}
    for expression in ("a > > 2", "a = ", "(a = 1", "a IN (1, 2)"):
        group = f"{stage.group}-refused-{len(refused)}"
        refused[expression] = outcome(
            stage.client, "push", topic=stage.topic, group=group, sql=expression
        )
    return {"keys": sorted(message["keys"] for message in messages), "refused": refused}


@scenario
def request_reply(stage: Stage) -> Observed:
    """A request gets the reply of the consumer that answers it."""
    stage.create_topic()
    replier = stage.start("answer")
    stage.await_queues(replier, 1)
    replies = stage.client.call(
        "request",
        topic=stage.topic,
        group=f"P-{stage.name}",
        body=base64.b64encode(b"question").decode(),
        exact="true",
        tags="red",
        keys="k",
    )
    replier.wait(lambda events: any(e["event"] in ("replied", "refused") for e in events), 20)
    return {
        "requests": [seen(message) for message in replier.events("message")],
        "replied": [event["status"] for event in replier.events("replied")],
        "refused": [event["code"] for event in replier.events("refused")],
        "replies": [seen(message) for message in replies],
    }


@scenario
def request_without_reply(stage: Stage) -> Observed:
    """A request that nobody answers ends with the client's timeout."""
    stage.create_topic()
    try:
        stage.client.call(
            "request",
            topic=stage.topic,
            group=f"P-{stage.name}",
            body="aGk=",
            # Far more than the sending takes: a client that has no time left says so otherwise.
            ttl=3000,
            exact="true",
        )
    except JavaClientError as error:
        return {"refused": error.kind, "code": error.code}
    return {}


@scenario
def batch(stage: Stage) -> Observed:
    """The messages of a batch keep their own keys, tags and properties."""
    stage.create_topic(2)
    properties: Observed = {"property.number": "{i}", "property.colour": "blue"}
    (sent,) = stage.send(
        "batch", count=4, mode="batch", keys="k{i}", tags="a,b", queue=1, flag=3, **properties
    )
    messages = stage.stored(stage.topic, 4)
    return {
        "sent": {key: sent[key] for key in ("status", "queueId", "queueOffset")},
        "messages": [seen(message) | {"at": message["queueOffset"]} for message in messages],
        "ids": ",".join(message["msgId"] for message in messages) == sent["msgId"],
    }


@scenario
def from_where(stage: Stage) -> Observed:
    """Where new groups begin on a young topic, by what they ask for."""
    stage.create_topic()
    stage.send("old", count=3, queue=0)
    found = {}
    for where in ("FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"):
        consumer = stage.start(
            "push",
            # In order, so that the last one is the last one.
            orderly="true",
            group=f"{stage.group}-{where}".replace("_", "-"),
            **{"from": f"CONSUME_FROM_{where}"},
        )
        stage.await_queues(consumer, 1)
        stage.send(f"new {where}", queue=0)
        _await_body(consumer, f"new {where}")
        found[where] = bodies(consumer.events("message"))
    return found
