"""What each process of `--brokers N` is given, by arithmetic from the settings of one."""

from pathlib import Path

import pytest

from mailboat.cli.fleet.plan import (
    check_no_fleet_stores,
    check_no_other_replicas,
    check_no_single_store,
    plan_fleet,
    plan_replicas,
    warn_of_stores_beyond,
)
from mailboat.config import Role, Settings, effective_values, load_settings
from mailboat.errors import ConfigError


def settings(role: Role = "standalone", **overrides: str) -> Settings:
    """Return settings as a command line makes them."""
    return load_settings(role, overrides=overrides)


def test_names_folders_and_ports_follow_the_number() -> None:
    """Ports ten apart, HTTP ports one; every other value is that of all."""
    one = settings(storePathRootDir="/d", storePathCommitLog="/log", flushDiskType="SYNC_FLUSH")
    fleet = plan_fleet(one, 3)
    assert list(fleet.brokers) == ["broker-a-0", "broker-a-1", "broker-a-2"]
    brokers = list(fleet.brokers.values())
    assert [each.broker.broker_name for each in brokers] == list(fleet.brokers)
    assert [each.broker.listen_port for each in brokers] == [10_911, 10_921, 10_931]
    assert [each.broker.http_port for each in brokers] == [8_080, 8_081, 8_082]
    assert [each.store.store_path_root_dir for each in brokers] == ["/d/0", "/d/1", "/d/2"]
    assert [each.store.store_path_commit_log for each in brokers] == ["/log/0", "/log/1", "/log/2"]
    assert {each.store.flush_disk_type for each in brokers} == {"SYNC_FLUSH"}
    assert {each.broker.bind_address for each in brokers} == {"127.0.0.1"}
    assert {each.role for each in brokers} == {"broker"}


def test_the_name_server_keeps_the_place_it_has_in_one_process() -> None:
    """Its port, its address and its table; its HTTP port is the one of `mailboat namesrv`."""
    name_server = plan_fleet(settings(storePathRootDir="/d"), 1).name_server
    assert name_server is not None
    assert name_server.role == "namesrv"
    assert name_server.namesrv.listen_port == 9_876
    assert name_server.namesrv.http_port == 8_079
    assert name_server.namesrv.bind_address == "127.0.0.1"
    assert name_server.namesrv.kv_config_path == "/d/namesrv/kvConfig.json"
    named = plan_fleet(settings(kvConfigPath="/kv.json", namesrvListenPort="19876"), 1).name_server
    assert named is not None
    assert named.namesrv.kv_config_path == "/kv.json"
    assert named.namesrv.listen_port == 19_876


def test_brokers_alone_have_no_name_server() -> None:
    """They register where they are told to."""
    fleet = plan_fleet(settings("broker", namesrvAddr="n:9876", brokerName="b"), 2)
    assert fleet.name_server is None
    assert {name: each.broker.namesrv_addr for name, each in fleet.brokers.items()} == {
        "b-0": "n:9876",
        "b-1": "n:9876",
    }


def test_free_ports_stay_free_and_no_http_stays_none() -> None:
    """0 and -1 are no ports to count from."""
    for http_port in ("0", "-1"):
        fleet = plan_fleet(settings(listenPort="0", httpPort=http_port, namesrvListenPort="0"), 2)
        assert fleet.name_server is not None
        assert fleet.name_server.namesrv.http_port == int(http_port)
        for each in fleet.brokers.values():
            assert (each.broker.listen_port, each.broker.http_port) == (0, int(http_port))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"listenPort": "65530"}, "listenPort 65540"),
        ({"httpPort": "65535"}, "httpPort 65536"),
        ({"httpPort": "10922"}, "port 10921 would be the name server's HTTP port and broker-a-1's"),
        ({"namesrvListenPort": "10919"}, "port 10919 would be the name server's port and "),
        ({"listenPort": "8083"}, "port 8081 would be "),
    ],
)
def test_ports_that_do_not_fit_are_refused(overrides: dict[str, str], words: str) -> None:
    """Before anything is started; the text names the port and who wants it."""
    with pytest.raises(ConfigError, match=words):
        plan_fleet(settings(**overrides), 2)


def test_memory_is_shared_unless_the_share_was_chosen() -> None:
    """40 per cent for one is 20 for each of two; a chosen share is that of each."""

    def shares(count: int, **overrides: str) -> set[int]:
        brokers = plan_fleet(settings(**overrides), count).brokers.values()
        return {each.store.access_message_in_memory_max_ratio for each in brokers}

    assert shares(2) == {20}
    assert shares(100) == {1}
    assert shares(2, accessMessageInMemoryMaxRatio="40") == {40}


def test_where_values_came_from_is_still_known() -> None:
    """Keys are those of the process's own role, and what differs is from `--brokers`."""
    fleet = plan_fleet(settings(namesrvListenPort="1234", flushDiskType="SYNC_FLUSH"), 2)
    assert fleet.name_server is not None
    name_server = {item.key: item for item in effective_values(fleet.name_server)}
    assert name_server["listenPort"].source == "command line"
    assert name_server["httpPort"].source == "--brokers"
    broker = {item.key: item for item in effective_values(fleet.brokers["broker-a-1"])}
    assert broker["flushDiskType"].source == "command line"
    assert broker["listenPort"].source == broker["brokerName"].source == "--brokers"
    assert broker["defaultTopicQueueNums"].source == "default"


@pytest.mark.parametrize("sign", ["commitlog", "consumequeue", "mailboat"])
def test_a_folder_with_any_part_of_a_store_is_one(tmp_path: Path, sign: str) -> None:
    """RocketMQ's, ours, and one whose CommitLog lies elsewhere."""
    one = settings(storePathRootDir=str(tmp_path))
    check_no_single_store(one, 2)
    check_no_fleet_stores(one)
    (tmp_path / sign).mkdir()
    with pytest.raises(ConfigError, match="is the store of one broker"):
        check_no_single_store(one, 2)
    check_no_fleet_stores(one)


def test_stores_in_numbered_folders_are_those_of_several(tmp_path: Path) -> None:
    """Other folders, and numbered ones without a store, are somebody else's."""
    one = settings(storePathRootDir=str(tmp_path))
    for name in ("007", "namesrv", "x", "\u0661", "5"):
        (tmp_path / name).mkdir()
        if name != "5":
            (tmp_path / name / "commitlog").mkdir()
    check_no_fleet_stores(one)
    for name in ("0", "2", "10"):
        (tmp_path / name / "mailboat").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"folders 0, 2, 10\).*start with --brokers 11"):
        check_no_fleet_stores(one)
    assert warn_of_stores_beyond(one, 11) is None
    warning = warn_of_stores_beyond(one, 2)
    assert warning is not None
    assert "--brokers 2 (folders 2, 10)" in warning
    assert warning.endswith("with --brokers 11")
    check_no_single_store(one, 2)


def test_replicas_have_one_name_and_follow_the_first() -> None:
    """brokerIds from 0, the first one a master; each listens for the others behind its own port."""
    fleet = plan_replicas(settings(storePathRootDir="/d"), 3)
    assert fleet.is_group
    assert list(fleet.brokers) == ["broker-a-0", "broker-a-1", "broker-a-2"]
    replicas = list(fleet.brokers.values())
    assert {each.broker.broker_name for each in replicas} == {"broker-a"}
    assert [each.broker.broker_id for each in replicas] == [0, 1, 2]
    assert [each.store.broker_role for each in replicas] == ["SYNC_MASTER", "SLAVE", "SLAVE"]
    assert [each.broker.listen_port for each in replicas] == [10_911, 10_921, 10_931]
    assert [each.store.ha_listen_port for each in replicas] == [10_912, 10_922, 10_932]
    assert [each.broker.http_port for each in replicas] == [8_080, 8_081, 8_082]
    assert [each.store.store_path_root_dir for each in replicas] == ["/d/0", "/d/1", "/d/2"]
    assert {(each.store.total_replicas, each.store.in_sync_replicas) for each in replicas} == {
        (3, 2)
    }
    assert replicas[1].sources["totalReplicas"] == "--replicas"
    free = plan_replicas(settings(listenPort="0"), 2).brokers["broker-a-1"]
    assert (free.broker.listen_port, free.store.ha_listen_port) == (0, 0)


def test_replicas_keep_what_was_chosen() -> None:
    """How many are in sync, and an ASYNC_MASTER, whose slaves are not waited for."""
    three = plan_replicas(settings(inSyncReplicas="3", totalReplicas="3"), 3)
    assert {each.store.in_sync_replicas for each in three.brokers.values()} == {3}
    loose = plan_replicas(settings(brokerRole="ASYNC_MASTER"), 2)
    assert [each.store.broker_role for each in loose.brokers.values()] == ["ASYNC_MASTER", "SLAVE"]
    assert {each.store.in_sync_replicas for each in loose.brokers.values()} == {1}
    with pytest.raises(ConfigError, match="must not be above --replicas 2"):
        plan_replicas(settings(inSyncReplicas="3", totalReplicas="3"), 2)
    with pytest.raises(
        ConfigError, match=r"--replicas=2: port 10912 .* broker-a-0's port for replicas"
    ):
        plan_replicas(settings(namesrvListenPort="10912"), 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"authenticationEnabled": "true"}, "haSecretFile=: must be set"),
        ({"tls.server.mode": "enforcing"}, "tls.enable=false: must be true"),
    ],
)
def test_replicas_are_refused_what_each_would_be(changes: dict[str, str], sentence: str) -> None:
    """One broker with these settings makes sense, and is no replica."""
    with pytest.raises(ConfigError, match=sentence):
        plan_replicas(settings(**changes), 2)


def test_fewer_replicas_than_there_were_are_refused(tmp_path: Path) -> None:
    """Of messages that only the others have nobody would know."""
    one = settings(storePathRootDir=str(tmp_path))
    (tmp_path / "2" / "commitlog").mkdir(parents=True)
    check_no_other_replicas(one, 3)
    with pytest.raises(ConfigError, match=r"stores of more replicas \(folder 2\).*--replicas 3"):
        check_no_other_replicas(one, 2)
