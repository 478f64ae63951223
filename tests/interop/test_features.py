"""The features of RocketMQ with stock Java clients of both release lines against mailboat.

The scenarios are those of `interop_messaging.py` and `interop_groups.py`; here stands what each of
them must have seen, which is RocketMQ's own behaviour (`test_differential.py` shows it). With
`MAILBOAT_TEST_INTEROP_TARGET=java-5.5.0` the file runs against the real broker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from interop_jars import CLIENT_LINES
from interop_scenarios import CHECK_MAX, Observed

if TYPE_CHECKING:
    from conftest import PlaysFactory

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


class Observe(Protocol):
    """Gives what a scenario saw."""

    def __call__(self, name: str) -> Observed:
        """Return the observation of the scenario."""


@pytest.fixture(params=CLIENT_LINES)
def observed(request: pytest.FixtureRequest, plays: PlaysFactory) -> Observe:
    """Return what the scenarios saw with clients of a release line."""
    server = os.environ.get("MAILBOAT_TEST_INTEROP_TARGET", "mailboat").removeprefix("java-")
    line: str = request.param

    def observe(name: str) -> Observed:
        return plays(server, line).observed(server, line, name)

    return observe


def _facts(message: Observed, *names: str) -> list[Any]:
    """Some fields or else properties of a message."""
    return [message[name] if name in message else message["properties"].get(name) for name in names]


def test_delay_levels(observed: Observe) -> None:
    """Delayed messages come when their level says, the level above the table as the last one."""
    saw = observed("delay_levels")
    assert [sent["status"] for sent in saw["sent"]] == ["SEND_OK"] * 4
    assert {(sent["topic"], sent["queueId"]) for sent in saw["sent"]} == {("T-delay-levels", 0)}
    assert [_facts(m, "tags", "keys", "DELAY", "reconsumeTimes") for m in saw["messages"]] == [
        ["red", "above", "18", 0],
        ["red", "first", "1", 0],
        ["red", "none", None, 0],
        ["red", "second", "2", 0],
    ]
    assert saw["same ids"]
    # Messages may come late on a busy machine, never early.
    assert {name: late for name, late in saw["_late_ms"].items() if late < 0} == {}


def test_retry_until_success(observed: Observe) -> None:
    """A failed message comes again from the group's retry topic, counted, at growing levels."""
    saw = observed("retry_until_success")
    names = ("body", "tags", "keys", "flag", "colour", "reconsumeTimes", "DELAY", "topic")
    topic = "T-retry-until-success"
    assert [_facts(message, *names) for message in saw["messages"]] == [
        ["again", "red", "k", 5, "blue", 0, None, topic],
        ["again", "red", "k", 5, "blue", 1, "3", topic],
        ["again", "red", "k", 5, "blue", 2, "4", topic],
    ]
    assert [_facts(m, "RETRY_TOPIC", "ORIGIN_MESSAGE_ID") for m in saw["messages"][1:]] == [
        [topic, "*"],
        [topic, "*"],
    ]
    assert saw["ids"] == 1
    assert saw["retry topic"] == {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert all(wait >= 1 for wait in saw["_waits_s"])


def test_retry_at_a_chosen_level(observed: Observe) -> None:
    """A listener chooses the level of the retry itself."""
    saw = observed("retry_at_a_chosen_level")
    assert [_facts(m, "reconsumeTimes", "DELAY") for m in saw["messages"]] == [[0, None], [1, "2"]]
    assert all(wait >= 3 for wait in saw["_waits_s"])


def test_retry_of_one_in_many(observed: Observe) -> None:
    """Only the failed message comes again, after the others."""
    saw = observed("retry_of_one_in_many")
    assert saw["attempts"] == [
        *[["k0", 0], ["k1", 0], ["k2", 0], ["k2", 1], ["k3", 0], ["k4", 0], ["k5", 0]]
    ]
    assert saw["last"] == ["k2", 1]


def test_dead_letter(observed: Observe) -> None:
    """After the last attempt a message lies in the group's dead-letter topic with all it had."""
    saw = observed("dead_letter")
    assert saw["attempts"] == [["k", 0], ["k", 1]]
    (dead,) = saw["dead"]
    names = ("body", "tags", "keys", "colour", "reconsumeTimes", "RETRY_TOPIC")
    assert _facts(dead, *names) == ["hopeless", "red", "k", "blue", 2, "T-dead-letter"]
    assert dead["topic"] == "%DLQ%G-dead-letter"
    assert saw["same id"]
    assert saw["dead letter topic"] == {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


def test_dead_letter_at_once(observed: Observe) -> None:
    """The level -1 of a listener makes a dead letter without any retry."""
    saw = observed("dead_letter_at_once")
    assert saw["attempts"] == [["k", 0]]
    assert [_facts(message, "body", "reconsumeTimes") for message in saw["dead"]] == [["poison", 1]]


def test_dead_letters_are_consumed(observed: Observe) -> None:
    """The dead-letter topic can be subscribed to like any other."""
    saw = observed("dead_letters_are_consumed")
    assert [_facts(message, "body", "keys", "tags") for message in saw["messages"]] == [
        ["dead#0", "k0", "red"],
        ["dead#1", "k1", "red"],
        ["dead#2", "k2", "red"],
    ]


def test_orderly(observed: Observe) -> None:
    """Each queue arrives in the order in which it was sent."""
    assert observed("orderly")["order"] == {
        str(queue): [
            *[f"q{queue}#{i}" for i in range(5)],
            *[f"later{queue}#{i}" for i in range(3)],
        ]
        for queue in range(4)
    }


def test_orderly_retry_in_place(observed: Observe) -> None:
    """A failing message of an orderly group is repeated before the next one, and counted."""
    assert observed("orderly_retry_in_place")["attempts"] == [
        *[["k0", 0], ["k1", 0], ["k2", 0], ["k2", 1], ["k2", 2], ["k3", 0], ["k4", 0]]
    ]


def test_orderly_dead_letter(observed: Observe) -> None:
    """An orderly message that used up its attempts becomes a dead letter, and the queue goes on."""
    saw = observed("orderly_dead_letter")
    assert saw["attempts"] == [["k0", 0], ["k1", 0], ["k1", 1], ["k2", 0], ["k3", 0]]
    assert [_facts(message, "body", "tags", "keys") for message in saw["dead"]] == [
        ["row#1", "red", "k1"]
    ]


def test_orderly_members(observed: Observe) -> None:
    """Queues that move between orderly members keep their order, without a message twice."""
    saw = observed("orderly_members")
    assert saw["shares"] == [2, 2]
    assert saw["order"] == {
        str(queue): [f"{part}{queue}#{i}" for part in "abc" for i in range(3)] for queue in range(4)
    }


def test_suspended(observed: Observe) -> None:
    """What comes while a consumer is suspended is there when it resumes."""
    assert observed("suspended") == {"later while suspended": False, "bodies": ["held", "later"]}


def test_broadcasting_failures(observed: Observe) -> None:
    """Every broadcasting member gets everything once, and a failed message does not come again."""
    saw = observed("broadcasting_failures")
    assert saw["members"] == [["one", "two"], ["one", "two"]]
    assert saw["reconsumeTimes"] == [0]


def test_sql_pull(observed: Observe) -> None:
    """An SQL expression selects what is true, with missing and ill-typed properties as unknown."""
    saw = observed("sql_pull")
    assert saw == {
        "a > 3": ["k4", "k5"],
        "a BETWEEN 2 AND 4": ["k2", "k3", "k4"],
        "a NOT BETWEEN 2 AND 4": ["k0", "k1", "k5"],
        "a = 1 OR a = 5": ["k1", "k5"],
        "NOT (a = 1)": ["k0", "k2", "k3", "k4", "k5"],
        "a > 1.5 AND a <= 3.0": ["k2", "k3"],
        "TAGS = 'red' AND a >= 2": ["k3"],
        "TAGS IN ('green', 'blue')": ["k1", "k2", "k4", "k5"],
        "TAGS NOT IN ('green', 'blue')": ["k0", "k3"],
        "text = 'it''s 3'": ["k3"],
        "missing IS NULL AND a < 2": ["k0", "k1"],
        "missing = 'x'": [],
        "missing <> 'x'": [],
        "missing = 'x' OR a = 2": ["k2"],
        "text IS NOT NULL AND a = 0": ["k0"],
        "text > 3": [],
        "TRUE AND a = 4": ["k4"],
        "a = 3 -- the third\n": ["k3"],
    }


def test_sql_push(observed: Observe) -> None:
    """A push consumer gets what its SQL selects; one with a bad expression is refused with 23."""
    saw = observed("sql_push")
    assert saw["keys"] == ["k2", "k3", "k5", "n2", "n3", "n4", "n5"]
    assert {result["code"] for result in saw["refused"].values()} == {23}


def test_request_reply(observed: Observe) -> None:
    """A request gets its reply, with the reply's body and properties."""
    saw = observed("request_reply")
    assert [_facts(m, "body", "tags", "keys", "TTL") for m in saw["requests"]] == [
        ["question", "red", "k", "10000"]
    ]
    assert (saw["replied"], saw["refused"]) == (["SEND_OK"], [])
    assert [_facts(m, "body", "colour", "MSG_TYPE", "CORRELATION_ID") for m in saw["replies"]] == [
        ["re:question", "blue", "reply", "*"]
    ]


def test_request_without_reply(observed: Observe) -> None:
    """A request that nobody answers ends in the client's own timeout."""
    assert observed("request_without_reply")["refused"] == "RequestTimeoutException"


def test_batch(observed: Observe) -> None:
    """Each message of a batch keeps its own keys, tag, properties and id."""
    saw = observed("batch")
    assert saw["sent"] == {"status": "SEND_OK", "queueId": 1, "queueOffset": 0}
    names = ("body", "keys", "tags", "flag", "number", "colour", "at")
    assert [_facts(message, *names) for message in saw["messages"]] == [
        [f"batch#{i}", f"k{i}", "ab"[i % 2], 3, str(i), "blue", i] for i in range(4)
    ]
    assert saw["ids"]


def test_from_where(observed: Observe) -> None:
    """On a topic that is young and in memory every new group begins with its first message."""
    old = ["old#0", "old#1", "old#2"]
    assert observed("from_where") == {
        "FIRST_OFFSET": [*old, "new FIRST_OFFSET"],
        "LAST_OFFSET": [*old, "new FIRST_OFFSET", "new LAST_OFFSET"],
        "TIMESTAMP": [*old, "new FIRST_OFFSET", "new LAST_OFFSET", "new TIMESTAMP"],
    }


def test_transaction_outcomes(observed: Observe) -> None:
    """What is committed, at once or by a check, arrives once; what is rolled back never does."""
    saw = observed("transaction_outcomes")
    assert {name: sent["localState"] for name, sent in saw["sent"].items()} == {
        "commit": "COMMIT_MESSAGE",
        "rollback": "ROLLBACK_MESSAGE",
        "checked": "UNKNOW",
        "twice": "UNKNOW",
        "undone": "UNKNOW",
    }
    assert all(sent["status"] == "SEND_OK" for sent in saw["sent"].values())
    assert all(sent["transactionId"] for sent in saw["sent"].values())
    names = ("body", "tags", "keys", "colour", "transactionBits", "prepared", "queueId")
    assert [_facts(message, *names) for message in saw["messages"]] == [
        [name, "red", name, "blue", 8, True, 0] for name in ("checked", "commit", "twice")
    ]
    assert saw["same ids"]
    assert {name: [c["number"] for c in checks] for name, checks in saw["checks"].items()} == {
        "commit": [],
        "rollback": [],
        "checked": [1],
        "twice": [1, 2],
        "undone": [1],
    }
    names = ("topic", "body", "tags", "keys", "transactionId", "TRANSACTION_CHECK_TIMES", "number")
    assert [_facts(check, *names) for check in saw["checks"]["twice"]] == [
        ["T-transaction-outcomes", "twice", "red", "twice", True, "1", 1],
        ["T-transaction-outcomes", "twice", "red", "twice", True, "2", 2],
    ]


def test_transaction_never_ended(observed: Observe) -> None:
    """After `transactionCheckMax` checks a half message is set aside, where it can be read."""
    saw = observed("transaction_never_ended")
    assert saw["numbers"] == list(range(1, CHECK_MAX + 1))
    assert saw["times"] == [str(number) for number in saw["numbers"]]
    assert [_facts(message, "topic", "body", "tags", "REAL_TOPIC") for message in saw["aside"]] == [
        ["TRANS_CHECK_MAX_TIME_TOPIC", "endless", "red", "T-transaction-never-ended"]
    ]


def test_transaction_other_producer(observed: Observe) -> None:
    """Any live producer of the group can end the transaction of one that is gone."""
    saw = observed("transaction_other_producer")
    assert saw["checks"] == ["lost"]
    assert [message["body"] for message in saw["messages"]] == ["lost"]


def test_transaction_immunity(observed: Observe) -> None:
    """A message that asks to be left alone for 2 s is checked after them."""
    saw = observed("transaction_immunity")
    assert [check["number"] for check in saw["checks"]] == [1]
    assert [_facts(m, "body", "transactionBits") for m in saw["messages"]] == [["patient", 8]]
    assert saw["_waited_ms"] >= 2000


def test_reset_by_time(observed: Observe) -> None:
    """A group that is online is set back to a time and gets the messages since then again."""
    saw = observed("reset_by_time")
    assert saw["reset"] == [(0, 3)]
    assert saw["bodies"] == ["new#0", "new#1", "new#0", "new#1"]


def test_reset_offline(observed: Observe) -> None:
    """A group without members is set back too, as by a 5.x broker."""
    saw = observed("reset_offline")
    assert saw["result"] == {"events": 1}
    assert saw["bodies"] == ["old#0", "old#1", "old#2", "new"]


def test_clone_offsets(observed: Observe) -> None:
    """A group that took over another one's offsets goes on where that one was."""
    assert observed("clone_offsets") == {"bodies": ["new#0", "new#1"]}


def test_members(observed: Observe) -> None:
    """Running info, stack, offsets and direct consumption come from the member itself."""
    saw = observed("members")
    assert saw["member"] == {
        "language": "JAVA",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
    }
    assert saw["properties"]["PROP_THREADPOOL_CORE_SIZE"] == "4"
    assert saw["subscriptions"] == {"%RETRY%G-members": "*", "T-members": "red || green"}
    assert saw["queues"] == [("%RETRY%G-members", 0), ("T-members", 0), ("T-members", 1)]
    assert saw["jstack"]
    assert saw["status"] == [(1, 1)]
    assert saw["status clients"]
    assert saw["direct"] == [{"result": "CR_SUCCESS", "order": False}]
    assert [_facts(m, "body", "tags", "queueId") for m in saw["messages"]] == [
        ["direct", "red", 1],
        ["direct", "red", 1],
    ]


def test_message_trace(observed: Observe) -> None:
    """Producers and consumers with the trace on find their records in the trace topic."""
    saw = observed("message_trace")
    assert saw["traceOn"]
    assert sorted(saw["fields"]) == ["Pub", "SubAfter", "SubBefore"]
    assert saw["published"] == [
        *["DefaultRegion", "P-message-trace-on", "T-message-trace", "red", "k"]
    ]
    assert (saw["consumed"], saw["success"]) == ("G-message-trace", "true")


def test_refusals(observed: Observe) -> None:
    """Clients are refused with the codes that they know."""
    saw = observed("refusals")
    assert {name: result["code"] for name, result in saw.items()} == {
        "properties too long": 13,
        "wrong queue": 29,
        "absent id": 208,
        "absent key": 208,
        "unknown topic's queues": 17,
        "unknown topic's route": 17,
        "offline group's members": 17,
        "offline group's status": 1,
        "offline member": 17,
        "unknown topic's reset": 17,
        "unknown group's clone": 17,
    }
