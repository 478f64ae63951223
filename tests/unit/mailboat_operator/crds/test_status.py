"""What the operator writes into `status`."""

from mailboat_operator.crds.status import (
    BrokerStatus,
    BrokerStatusEntry,
    Condition,
    NameServerStatus,
    StorageStatusEntry,
    TopicStatus,
    TopicStatusEntry,
    status_manifest,
)


def test_nothing_known_is_nothing_written():
    """A status that knows nothing is empty, so that it hides nothing."""
    for status in (BrokerStatus(), NameServerStatus(), TopicStatus()):
        assert status_manifest(status) == {}


def test_zero_and_false_are_known():
    """Nothing ready is not the same as not known."""
    entry = BrokerStatusEntry(name="orders-g0", ready=False)
    status = BrokerStatus(groups=1, ready_groups=0, brokers=(entry,))
    assert status_manifest(status) == {
        "groups": 1,
        "readyGroups": 0,
        "brokers": [{"name": "orders-g0", "ready": False}],
    }


def test_statuses_are_taken_by_the_api_server(api_server, make):
    """What the structs can say, the schema lets through unchanged."""
    condition = Condition(
        type="Ready",
        status="True",
        reason="AllGroupsServing",
        message="2 of 2 groups serve",
        last_transition_time="2026-11-21T04:00:00Z",
        observed_generation=3,
    )
    volume = StorageStatusEntry(
        pod="orders-g0-0",
        claim="data-orders-g0-0",
        capacity="20Gi",
        used_percent=100,
        inodes_used_percent=0,
        numbers_from="kubelet",
        active_thresholds=("expire", "forceClean"),
        oldest_message_time="2026-11-20T04:00:00Z",
        effective_retention="48h",
        time_to_full="5h",
    )
    broker = BrokerStatus(
        observed_generation=3, conditions=(condition,), groups=2, ready="2/2", storage=(volume,)
    )
    name_server = NameServerStatus(conditions=(condition,), addresses=("ns-0.ns-nodes.a.svc:9876",))
    topic = TopicStatus(brokers=(TopicStatusEntry(name="orders-g0", read_queues=8, perm="RW"),))
    for kind, status in {"Broker": broker, "NameServer": name_server, "Topic": topic}.items():
        assert api_server.refusals(make(kind, {"status": status_manifest(status)})) == {}


def test_wrong_status_is_refused(api_server, make):
    """The schema of the status is not just for show."""
    refusals = api_server.refusals(make("Broker", {"status": {"storage": [{"usedPercent": 101}]}}))
    assert len(refusals) == 2
