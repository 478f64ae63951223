"""What the operator reads from a Topic."""

import pytest

from mailboat.model.names import SYSTEM_TOPICS
from mailboat_operator.crds.topic import parse_topic, topic_name_of
from mailboat_operator.errors import InvalidResourceError


def test_topic_is_named_after_the_object_unless_told(make):
    """topicName is for names that Kubernetes does not take."""
    assert topic_name_of(parse_topic(make("Topic", {}))) == "payments"
    assert topic_name_of(parse_topic(make("Topic", {"spec.topicName": "Pay_1"}))) == "Pay_1"


def test_defaults(make):
    """A topic has eight queues, takes reads and writes, and outlives its object."""
    spec = parse_topic(make("Topic", {"spec.queues": None})).spec
    assert (spec.queues.read, spec.queues.write) == (8, 8)
    assert (spec.perm, spec.reclaim_policy) == ("RW", "Retain")


@pytest.mark.parametrize("name", sorted(SYSTEM_TOPICS))
def test_the_brokers_own_topics_are_refused(make, api_server, name):
    """Nobody deletes a topic that the broker needs through its object."""
    manifest = make("Topic", {"spec.topicName": name})
    assert api_server.refusals(manifest)
    with pytest.raises(InvalidResourceError, match=f"spec.topicName: {name} is the broker's own"):
        parse_topic(manifest)


def test_name_that_no_topic_may_have_gets_a_remedy(make):
    """An object's name with a dot needs a topicName."""
    with pytest.raises(InvalidResourceError) as caught:
        parse_topic(make("Topic", {"metadata.name": "pay.eu", "metadata.namespace": "shop"}))
    assert str(caught.value).startswith("Topic shop/pay.eu: metadata.name: topic name 'pay.eu'")
