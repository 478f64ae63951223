"""Which settings a Broker's spec means, and which of them restart a broker."""

import pytest
from operator_samples import sample_broker

from mailboat.config import load_settings
from mailboat.config.properties import parse_properties
from mailboat_operator.resources.config_map import (
    address_in,
    broker_config_map,
    broker_settings,
    live_settings,
    properties,
    restart_hash,
    same_value,
    user_config,
)


def settings_of(name_servers: tuple[str, ...] | None = ("a:1", "b:2"), **spec) -> dict[str, str]:
    """Return the settings of the first group."""
    broker = sample_broker(**spec)
    return broker_settings(broker, 0, address="10.96.0.7", name_servers=name_servers)


def test_the_file_is_one_that_a_broker_takes(tmp_path):
    """The real loader reads it, and every field of the spec is where RocketMQ's name says."""
    text = properties(
        settings_of(
            clusterName="Main",
            config={"flushDiskType": "SYNC_FLUSH"},
            storage={"size": "8Gi", "segmentSize": "64Mi"},
            retention={
                "hours": 48,
                "minHours": 2,
                "deleteWindow": ["22:00-01:00", "04:00-05:00"],
                "thresholds": {
                    "expire": {"percent": 60, "freeBytes": "3Gi"},
                    "forceClean": {"percent": 70, "freeBytes": "2Gi"},
                    "rejectWrites": {"percent": 80, "freeBytes": "1Gi"},
                    "hysteresisPercent": 4,
                },
            },
            shutdown={"drainSeconds": 7, "graceSeconds": 60},
        )
    )
    file = tmp_path / "broker.conf"
    file.write_text(text)
    loaded = load_settings("broker", file=file)
    assert loaded.warnings == ()
    broker, store = loaded.broker, loaded.store
    assert (broker.broker_name, broker.broker_cluster_name) == ("orders-g0", "Main")
    assert (broker.broker_ip1, broker.listen_port, broker.http_port) == ("10.96.0.7", 10_911, 8_080)
    assert broker.namesrv_addr == "a:1;b:2"
    assert broker.shutdown_drain_seconds == 7
    assert broker.route_kept_seconds == 30
    assert store.flush_disk_type == "SYNC_FLUSH"
    assert store.store_path_root_dir == "/var/lib/mailboat/store"
    assert store.mapped_file_size_commit_log == 64 << 20
    assert store.file_reserved_time == 48
    assert store.delete_when == "00;04;22;23"
    assert store.disk_max_used_space_ratio == 60
    assert store.disk_space_clean_forcibly_ratio == 70
    assert store.disk_space_warning_level_ratio == 80
    assert store.disk_expire_free_bytes == 3 << 30
    assert store.disk_force_clean_free_bytes == 2 << 30
    assert store.disk_reject_free_bytes == 1 << 30
    assert store.disk_threshold_hysteresis_percent == 4


def test_the_names_of_the_brokers_may_begin_otherwise():
    """For Brokers of one name at the same name servers."""
    assert settings_of(brokerNamePrefix="team-a")["brokerName"] == "team-a-g0"
    assert settings_of(brokerNamePrefix="team-a")["brokerClusterName"] == "orders"


def test_how_long_routes_are_kept_can_be_chosen():
    """Zero makes a broker leave as RocketMQ's do."""
    assert settings_of(config={"routeKeptSeconds": "0"})["routeKeptSeconds"] == "0"


def test_a_bad_setting_is_left_out_and_reported_with_the_nearest_key():
    """A key that no broker knows, or a value that it refuses, keeps no broker from starting."""
    user = user_config(
        sample_broker(
            config={
                "flushDiskTyp": "x",
                "maxMessageSize": "big",
                "traceOn": "false",
                "haListenPort": "1",
                "haSlaveFallbehindMax": "1",
                "brokerRole": "SYNC_MASTER",
            }
        ).spec
    )
    assert user.accepted == {"traceOn": "false"}
    assert [(item.key, item.unknown) for item in user.problems] == [
        ("brokerRole", False),
        ("flushDiskTyp", True),
        ("maxMessageSize", False),
    ]
    assert "the nearest one is flushDiskType" in user.problems[1].sentence
    assert "must be a whole number" in user.problems[2].sentence
    assert "use spec.replicas" in user.problems[0].sentence
    assert user.without_effect == ("haListenPort", "haSlaveFallbehindMax")


@pytest.mark.parametrize(
    "change",
    [
        {"retention": {"hours": 1}},
        {"config": {"maxMessageSize": "1000"}},
        {"config": {"routeKeptSeconds": "0"}},
        {"nameServers": {"addresses": ["c:3"]}},
    ],
)
def test_a_live_setting_restarts_nothing(change):
    """What a running broker takes over is not part of the digest."""
    assert restart_hash(settings_of(**change)) == restart_hash(settings_of())


def test_the_list_of_name_servers_restarts_nothing():
    """One more name server, or none known at all, is a live change."""
    assert restart_hash(settings_of(name_servers=None)) == restart_hash(settings_of())


@pytest.mark.parametrize(
    "change",
    [{"config": {"flushDiskType": "SYNC_FLUSH"}}, {"shutdown": {"drainSeconds": 1}}],
)
def test_another_setting_restarts(change):
    """What takes effect at a start only is part of the digest."""
    assert restart_hash(settings_of(**change)) != restart_hash(settings_of())


def test_a_live_setting_that_is_no_longer_given_goes_back_to_its_default():
    """A running broker should have the spec's value, else the default; its name servers stay while
    nobody knows them."""
    given = live_settings(settings_of(config={"maxMessageSize": "1000"}))
    assert given["maxMessageSize"] == "1000"
    assert live_settings(settings_of())["maxMessageSize"] == "4194304"
    assert given["namesrvAddr"] == "a:1;b:2"
    assert "namesrvAddr" not in live_settings(settings_of(name_servers=None))
    assert "flushDiskType" not in given


def test_values_are_compared_as_the_broker_reads_them():
    """Another spelling of a value is no change to send."""
    assert same_value("autoCreateTopicEnable", "TRUE", "true")
    assert same_value("maxMessageSize", " 1000", "1000")
    assert not same_value("maxMessageSize", "1000", "1001")
    assert not same_value("maxMessageSize", "1000", "broken")


def test_the_address_is_read_back_from_the_file():
    """A Service that was deleted gets its address again from what the broker announces."""
    broker = sample_broker()
    assert address_in(broker_config_map(broker, 0, settings_of())) == "10.96.0.7"
    assert address_in({"data": {"broker.conf": "no equals sign"}}) is None
    assert address_in({}) is None


@pytest.mark.parametrize("value", [" a", "a\\b", "a=b:c#d!", "", "\\u0041"])
def test_a_value_survives_the_file(value):
    """Escapes are such that the properties reader gives the same value back."""
    (found,) = parse_properties(properties({"key": value}))
    assert found.value == value


def test_files_beside_small_segments_are_small_too():
    """With 16 MiB segments index and queue files are 8.4 and 2 MiB; with 1 GiB as RocketMQ's."""
    small = settings_of(storage={"size": "256Mi", "segmentSize": "16Mi"})
    assert small["maxIndexNum"] == str(8 * 1024 * 1024 // 20)
    assert small["maxHashSlotNum"] == str(8 * 1024 * 1024 // 20 // 4)
    assert small["mappedFileSizeConsumeQueue"] == str(2 * 1024 * 1024 // 20 * 20)
    large = settings_of(storage={"size": "10Gi", "segmentSize": "1Gi"})
    assert not {"maxIndexNum", "maxHashSlotNum", "mappedFileSizeConsumeQueue"} & large.keys()


def test_a_user_may_say_how_large_an_index_file_is():
    """What `config` says wins over what follows from the segment size."""
    storage = {"size": "256Mi", "segmentSize": "16Mi"}
    assert settings_of(storage=storage, config={"maxIndexNum": "77"})["maxIndexNum"] == "77"
