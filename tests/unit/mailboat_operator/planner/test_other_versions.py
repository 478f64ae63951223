"""Brokers of other versions than the operator's: which keys reach their files, and which do not."""

from typing import Any

from model_cluster import BROKER_KEYS, ModelCluster, pod_is_ready, settle
from operator_samples import BROKER_SPEC

from mailboat.config.properties import parse_properties
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.resources.broker_keys import BASE_KEYS
from mailboat_operator.resources.config_map import broker_settings

OLDER = frozenset(BROKER_KEYS) - {"routeKeptSeconds", "traceOn"}
NEWER = frozenset(BROKER_KEYS) | {"keyOfTomorrow"}


def cluster_of(image: str, keys: frozenset[str], **spec: Any) -> ModelCluster:
    """Return a cluster whose Broker is pinned to an image whose brokers have these keys."""
    cluster = ModelCluster(BROKER_SPEC | {"image": image, **spec})
    cluster.keys_of_image[image] = keys
    return cluster


def file_of(cluster: ModelCluster, group: int = 0) -> dict[str, str]:
    """Return what the broker.conf of a group says."""
    text = cluster.objects["ConfigMap", f"orders-g{group}"]["data"]["broker.conf"]
    return {item.key: item.value for item in parse_properties(text)}


def applied(cluster: ModelCluster) -> dict[str, Any]:
    """Return the condition ConfigApplied."""
    (found,) = [item for item in cluster.status["conditions"] if item["type"] == "ConfigApplied"]
    return dict(found)


def test_a_pinned_older_broker_starts_and_starts_again():
    """A key that it does not list never reaches its file, not even while nobody can be asked."""
    cluster = cluster_of("mailboat:0", OLDER)
    settle(cluster, plan_broker)
    assert file_of(cluster).keys() <= OLDER
    assert pod_is_ready(cluster.objects["Pod", "orders-g0-0"])
    assert applied(cluster)["reason"] == "Applied"
    before = file_of(cluster)

    cluster.evict("orders-g0-0")
    writes = len(cluster.writes)
    settle(cluster, plan_broker)
    assert pod_is_ready(cluster.objects["Pod", "orders-g0-0"])
    assert file_of(cluster) == before
    assert [item for item in cluster.writes[writes:] if item != "status"] == []


def test_a_setting_that_an_older_broker_lacks_is_left_out_and_told():
    """The user hears of it, and a restart of the pod does not bring it back."""
    cluster = cluster_of("mailboat:0", OLDER)
    settle(cluster, plan_broker)
    cluster.change(config={"traceOn": "false", "regionId": "here"})
    settle(cluster, plan_broker)
    assert "traceOn" not in file_of(cluster)
    assert file_of(cluster)["regionId"] == "here"
    assert applied(cluster)["reason"] == "UnknownKey"
    assert (
        "config.traceOn is not a setting that a broker of mailboat:0 knows"
        in (applied(cluster)["message"])
    )
    for _ in range(2):
        cluster.evict("orders-g0-0")
        settle(cluster, plan_broker)
        assert pod_is_ready(cluster.objects["Pod", "orders-g0-0"])
        assert "traceOn" not in file_of(cluster)
    assert cluster.taken_down == [("orders-g0-0", 2)]


def test_a_new_group_of_an_older_broker_knows_what_the_others_lack():
    """The first start of a group needs no try of its own."""
    cluster = cluster_of("mailboat:0", OLDER, config={})
    settle(cluster, plan_broker)
    cluster.change(config={"traceOn": "false"})
    settle(cluster, plan_broker)
    cluster.change(groups=2)
    settle(cluster, plan_broker)
    assert pod_is_ready(cluster.objects["Pod", "orders-g1-0"])
    assert "traceOn" not in file_of(cluster, 1)


def test_a_setting_of_a_newer_pinned_broker_is_passed_on():
    """The operator does not know it; it is in the file from the first start on."""
    cluster = cluster_of("mailboat:9", NEWER, config={"keyOfTomorrow": "7"})
    settle(cluster, plan_broker)
    assert file_of(cluster)["keyOfTomorrow"] == "7"
    assert cluster.running_config["orders-g0-0"]["keyOfTomorrow"] == "7"
    assert applied(cluster)["reason"] == "Applied"
    assert cluster.taken_down == []


def test_no_setting_of_nobody_is_passed_on_for_long():
    """What a pinned broker, asked, does not list is a slip: it is told and left out."""
    cluster = cluster_of("mailboat:9", NEWER)
    settle(cluster, plan_broker)
    cluster.change(config={"keyOfTomorow": "7"})
    settle(cluster, plan_broker)
    assert "keyOfTomorow" not in file_of(cluster)
    assert applied(cluster)["reason"] == "UnknownKey"


def test_an_operator_that_is_newer_than_the_pods_puts_nothing_into_their_way():
    """Before its turn in the roll an old pod may start once more, from the file as it is then."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    cluster.default_image = "mailboat:0"
    cluster.keys_of_image["mailboat:0"] = OLDER
    settle(cluster, plan_broker)
    cluster.default_image = "mailboat:1"
    for _ in range(200):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        for name, pod in cluster.pods():
            keys = cluster.keys_of_image.get(pod["spec"]["containers"][0]["image"], NEWER)
            assert file_of(cluster, int(name[8])).keys() <= keys, name
        cluster.step()
    assert all(file_of(cluster, group)["routeKeptSeconds"] == "30" for group in (0, 1))
    assert cluster.running_config["orders-g1-0"]["routeKeptSeconds"] == "30"
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0", "orders-g1-0"]


def test_a_rollback_of_the_default_image_starts():
    """What a newer broker listed counts for its image alone."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    settle(cluster, plan_broker)
    assert file_of(cluster)["routeKeptSeconds"] == "30"
    cluster.default_image = "mailboat:0"
    cluster.keys_of_image["mailboat:0"] = OLDER
    settle(cluster, plan_broker)
    assert all(pod_is_ready(pod) for _, pod in cluster.pods())
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0", "orders-g1-0"]
    assert "routeKeptSeconds" not in file_of(cluster)


def test_a_live_setting_stays_with_the_old_pods_of_a_roll():
    """A key that leaves the file for the sake of the new image is not taken from a running pod."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    settle(cluster, plan_broker)
    cluster.change(image="mailboat:2")
    for _ in range(200):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        for name, pod in cluster.pods():
            if pod["spec"]["containers"][0]["image"] == "mailboat:1":
                assert cluster.running_config[name]["routeKeptSeconds"] == "30"
        cluster.step()
    assert len(cluster.taken_down) == 2


def test_what_is_written_unasked_is_known_to_every_broker_or_live():
    """A key that comes and goes with what is known of an image must restart nobody."""
    small = {"size": "256Mi", "segmentSize": "16Mi"}
    broker = ModelCluster(BROKER_SPEC | {"storage": small}).broker()
    settings = broker_settings(broker, 0, address="10.0.0.1", name_servers=("a:1",))
    assert settings.keys() - BASE_KEYS == {"routeKeptSeconds"}
    assert BASE_KEYS <= settings.keys()
