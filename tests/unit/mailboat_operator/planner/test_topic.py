"""What is done for a Topic."""

from typing import Any

from operator_samples import metadata, sample_broker, sample_topic

from mailboat_operator.crds.broker import Broker, parse_broker
from mailboat_operator.crds.topic import Topic
from mailboat_operator.planner.actions import Action, DeleteTopic, Plan, PutTopic, SetFinalizers
from mailboat_operator.planner.snapshot import TopicSnapshot
from mailboat_operator.planner.topic import FINALIZER, is_same_topic, plan_topic

URLS = {"orders-g0": "http://10.0.0.1:8080", "orders-g1": "http://10.0.0.2:8080"}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["other", FINALIZER]}


def live(read: int = 8, write: int = 8, perm: int = 6, **held: int) -> dict[str, Any]:
    """Return what a broker says of a topic; `q7=3` puts three messages into queue 7."""
    counts = {int(name[1:]): count for name, count in held.items()}
    return {
        "topic": "orders-topic",
        "perm": perm,
        "read_queue_nums": read,
        "write_queue_nums": write,
        "queues": [
            {"queue_id": number, "min_offset": 5, "max_offset": 5 + counts.get(number, 0)}
            for number in range(read)
        ],
    }


def plan(
    topic: Topic,
    topics: dict[str, Any],
    *,
    broker: Broker | None = None,
    gone: bool = False,
    rivals: tuple[dict[str, Any], ...] = (),
    volumes: dict[str, str] | None = None,
) -> Plan:
    """Plan for a Topic on a Broker of two groups, as many as answer."""
    snapshot = TopicSnapshot(
        resource=topic,
        broker=None if gone else broker or sample_broker(groups=2),
        endpoints={name: URLS[name] for name in topics},
        topics=topics,
        now_s=1_700_000_000.0,
        rivals=rivals,
        volumes=volumes or {},
    )
    return plan_topic(snapshot)


def actions(made: Plan) -> list[Action]:
    """Return everything that a plan does."""
    return [action for step in made.steps for action in step.actions]


def ready(made: Plan) -> tuple[str, str]:
    """Return status and reason of Ready."""
    (condition,) = made.status["conditions"]
    return condition["status"], condition["reason"]


def test_a_topic_is_made_on_every_group_that_lacks_it():
    """Each group that does not have it gets it, in a step of its own."""
    made = plan(sample_topic(perm="R"), {"orders-g0": None, "orders-g1": live(perm=4)})
    assert actions(made) == [PutTopic(URLS["orders-g0"], "orders-topic", 8, 8, 4)]
    assert ready(made) == ("False", "TopicPending")
    assert made.again_after_s is not None


def test_a_topic_as_wanted_is_left_alone():
    """At rest: no action, Ready, and the queues of each group in the status."""
    topics = {"orders-g0": live(), "orders-g1": live()}
    made = plan(sample_topic(), topics)
    assert actions(made) == []
    assert ready(made) == ("True", "TopicReady")
    assert made.status["ready"] == "2/2"
    assert made.status["brokers"][0] == {
        "name": "orders-g0",
        "readQueues": 8,
        "writeQueues": 8,
        "perm": "RW",
    }
    again = plan(Topic(sample_topic().metadata, sample_topic().spec, made.status), topics)
    assert again.status == made.status


def test_a_topic_that_differs_is_changed():
    """More queues, another permission: one call."""
    topic = sample_topic(queues={"read": 16, "write": 12}, perm="W", topicName="Orders_1")
    made = plan(topic, {"orders-g0": live(), "orders-g1": live(16, 12, 2)})
    assert actions(made) == [PutTopic(URLS["orders-g0"], "Orders_1", 16, 12, 2)]


def test_write_queues_shrink_and_read_queues_wait_until_they_are_empty():
    """A queue with messages stays readable; the condition says which group keeps how many."""
    topic = sample_topic(queues={"read": 2, "write": 2})
    made = plan(topic, {"orders-g0": live(q5=1), "orders-g1": live()})
    assert actions(made) == [
        PutTopic(URLS["orders-g0"], "orders-topic", 6, 2, 6),
        PutTopic(URLS["orders-g1"], "orders-topic", 2, 2, 6),
    ]
    settled = plan(topic, {"orders-g0": live(6, 2, q5=1), "orders-g1": live(2, 2)})
    assert actions(settled) == []
    assert ready(settled) == ("True", "QueuesInUse")
    empty = plan(topic, {"orders-g0": live(6, 2), "orders-g1": live(2, 2)})
    assert actions(empty) == [PutTopic(URLS["orders-g0"], "orders-topic", 2, 2, 6)]


def test_a_broker_that_does_not_tell_its_queues_keeps_them():
    """Without knowing what is in a queue, none is taken from its readers."""
    silent = live()
    del silent["queues"]
    topic = sample_topic(queues={"read": 2, "write": 2})
    made = plan(topic, {"orders-g0": silent, "orders-g1": live(2, 2)})
    assert actions(made) == [PutTopic(URLS["orders-g0"], "orders-topic", 8, 2, 6)]


def test_a_group_that_does_not_answer_is_waited_for():
    """The others get the topic; the silent one is named and asked again."""
    made = plan(sample_topic(), {"orders-g0": None})
    assert actions(made) == [PutTopic(URLS["orders-g0"], "orders-topic", 8, 8, 6)]
    (condition,) = made.status["conditions"]
    assert "orders-g1" in condition["message"]
    assert made.again_after_s is not None


def test_without_its_broker_a_topic_says_so():
    """A missing Broker is a condition."""
    made = plan(sample_topic(), {}, gone=True)
    assert actions(made) == []
    assert ready(made) == ("False", "BrokerMissing")


def test_the_finalizer_is_there_only_where_the_topic_is_to_go():
    """Retain needs none; Delete gets it before the topic is made, and a change back removes it."""
    topics = {"orders-g0": None, "orders-g1": None}
    assert not [a for a in actions(plan(sample_topic(), topics)) if isinstance(a, SetFinalizers)]
    first, *_ = actions(plan(sample_topic(reclaimPolicy="Delete"), topics))
    assert first == SetFinalizers((FINALIZER,), "1")
    back = sample_topic(more={"finalizers": ["other", FINALIZER]})
    assert actions(plan(back, {"orders-g0": live(), "orders-g1": live()})) == [
        SetFinalizers(("other",), "1")
    ]


def test_a_topic_without_the_finalizer_just_goes():
    """Retain: the resource is removed, the topic and its messages stay."""
    topic = sample_topic(more={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert actions(plan(topic, {"orders-g0": live(), "orders-g1": live()})) == []


def test_a_topic_is_removed_everywhere_before_the_resource_goes():
    """Delete: remove it from each group; let go when every group says it is unknown."""
    topic = sample_topic(more=DELETED, reclaimPolicy="Delete")
    made = plan(topic, {"orders-g0": live(), "orders-g1": None})
    assert actions(made) == [DeleteTopic(URLS["orders-g0"], "orders-topic")]
    assert ready(made) == ("False", "Deleting")
    waiting = plan(topic, {"orders-g0": None})
    assert actions(waiting) == []
    assert waiting.again_after_s is not None
    done = plan(topic, {"orders-g0": None, "orders-g1": None})
    assert actions(done) == [SetFinalizers(("other",), "1")]


def test_a_topic_on_a_kept_volume_is_waited_for():
    """It would come back with the group: the resource stays, and says what there is to do."""
    topic = sample_topic(more=DELETED, reclaimPolicy="Delete")
    gone = {"orders-g0": None, "orders-g1": None}
    own = {"orders-g0": "data-orders-g0-0", "orders-g1": "data-orders-g1-0"}
    made = plan(topic, gone, volumes=own | {"orders-g2": "data-orders-g2-0"})
    assert actions(made) == []
    assert made.again_after_s is not None
    (condition,) = made.status["conditions"]
    assert (condition["reason"], "data-orders-g2-0" in condition["message"]) == ("Deleting", True)
    assert "data-orders-g1-0" not in condition["message"]
    assert actions(plan(topic, gone, volumes=own)) == [SetFinalizers(("other",), "1")]
    retained = sample_topic(more=DELETED)
    let_go = plan(retained, gone, volumes={"orders-g2": "data-orders-g2-0"})
    assert actions(let_go) == [SetFinalizers(("other",), "1")]


def test_the_deletion_names_the_topic_that_was_seen():
    """One that is made anew under the name in between is another one."""
    topic = sample_topic(more=DELETED, reclaimPolicy="Delete")
    made = plan(topic, {"orders-g0": live() | {"incarnation": "17-0"}, "orders-g1": live()})
    assert actions(made) == [
        DeleteTopic(URLS["orders-g0"], "orders-topic", "17-0"),
        DeleteTopic(URLS["orders-g1"], "orders-topic", None),
    ]


def test_a_topic_whose_broker_is_gone_is_let_go():
    """There is nothing to remove it from: a namespace that is deleted must not wait for it."""
    topic = sample_topic(more=DELETED, reclaimPolicy="Delete")
    assert actions(plan(topic, {}, gone=True)) == [SetFinalizers(("other",), "1")]
    going = parse_broker(
        {
            "metadata": metadata("orders", deletionTimestamp="2026-01-01T00:00:00Z"),
            "spec": {"nameServers": {"ref": "ns"}, "storage": {"size": "8Gi"}},
        }
    )
    assert actions(plan(topic, {}, broker=going)) == [SetFinalizers(("other",), "1")]


def rival(name: str, day: int, **spec: Any) -> dict[str, Any]:
    """Return a Topic as the API server has it, made on a day of January."""
    born = f"2026-01-{day:02}T00:00:00Z"
    return {
        "metadata": metadata(name, creationTimestamp=born),
        "spec": {"brokerRef": "orders"} | spec,
    }


def born(day: int, **more: Any) -> dict[str, Any]:
    """Return the metadata of a Topic that was made on a day of January."""
    return {"creationTimestamp": f"2026-01-{day:02}T00:00:00Z", **more}


def test_a_topic_belongs_to_the_older_of_two():
    """The younger one writes nothing and names the older; the older works as if it were alone."""
    pair = (rival("orders-topic", 2), rival("older", 1, topicName="orders-topic"))
    topics = {"orders-g0": None, "orders-g1": live(4, 4)}
    younger = sample_topic(more=born(2), reclaimPolicy="Delete")
    made = plan(younger, topics, rivals=pair)
    assert actions(made) == []
    assert ready(made) == ("False", "NameTaken")
    (condition,) = made.status["conditions"]
    assert condition["message"] == (
        "topic orders-topic of Broker orders belongs to the older Topic older: delete one of the"
        " two"
    )
    assert made.again_after_s is not None
    older = sample_topic("older", more=born(1), topicName="orders-topic")
    assert len(actions(plan(older, topics, rivals=pair))) == 2


def test_of_two_topics_of_one_second_the_uid_decides():
    """Exactly one of them has the topic."""
    pair = (rival("a", 1, topicName="x"), rival("b", 1, topicName="x"))
    topics = {"orders-g0": live(), "orders-g1": live()}
    reasons = [
        ready(plan(sample_topic(name, more=born(1), topicName="x"), topics, rivals=pair))[1]
        for name in ("a", "b")
    ]
    assert reasons == ["TopicReady", "NameTaken"]


def test_a_topic_that_has_nothing_takes_nothing_along():
    """The younger of two is let go, whatever its reclaimPolicy; the older one removes the topic."""
    pair = (rival("orders-topic", 2), rival("older", 1, topicName="orders-topic"))
    topics = {"orders-g0": live(), "orders-g1": live()}
    younger = sample_topic(more=DELETED | born(2), reclaimPolicy="Delete")
    assert actions(plan(younger, topics, rivals=pair)) == [SetFinalizers(("other",), "1")]
    older = sample_topic(
        "older", more=DELETED | born(1), topicName="orders-topic", reclaimPolicy="Delete"
    )
    assert [type(action) for action in actions(plan(older, topics, rivals=pair))] == [
        DeleteTopic,
        DeleteTopic,
    ]


def test_a_topic_that_became_the_second_gives_its_finalizer_back():
    """It has nothing to remove any more."""
    pair = (rival("orders-topic", 2), rival("older", 1, topicName="orders-topic"))
    topic = sample_topic(more=born(2, finalizers=[FINALIZER]), reclaimPolicy="Delete")
    made = plan(topic, {"orders-g0": live(), "orders-g1": live()}, rivals=pair)
    assert actions(made) == [SetFinalizers((), "1")]


def test_topics_of_other_brokers_names_and_namespaces_are_no_rivals():
    """The same topic is one of the same name on the same Broker."""
    one = rival("orders-topic", 1)
    assert is_same_topic(one, rival("other", 2, topicName="orders-topic"))
    assert not is_same_topic(one, rival("orders-topic", 2, topicName="other"))
    assert not is_same_topic(one, rival("orders-topic", 2, brokerRef="payments"))
    elsewhere = rival("orders-topic", 2)
    elsewhere["metadata"]["namespace"] = "billing"
    assert not is_same_topic(one, elsewhere)
