"""The declared settings: keys, defaults, limits and documentation of every field."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from mailboat.config import (
    BrokerConfig,
    MessageStoreConfig,
    NamesrvConfig,
    RemotingConfig,
    Settings,
    effective_values,
    load_settings,
    properties_of,
    role_settings,
)
from mailboat.config.fields import Setting, camel_case, to_text
from mailboat.config.unsupported import UNSUPPORTED_KEYS
from mailboat.errors import ConfigError

CONFIG_CLASSES = (BrokerConfig, MessageStoreConfig, NamesrvConfig, RemotingConfig)
EVERY_SETTING = [
    pytest.param(role, key, item, id=f"{role}-{key}")
    for role in ("broker", "namesrv", "standalone")
    for key, item in role_settings(role).items()
]
# Spelt as in RocketMQ 5.3.3's MessageStoreConfig, BrokerConfig, NamesrvConfig and
# NettyServerConfig.
ROCKETMQ_DEFAULTS = {
    "brokerClusterName": "DefaultCluster",
    "brokerId": "0",
    "listenPort": "10911",
    "brokerPermission": "6",
    "defaultTopicQueueNums": "8",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "clusterTopicEnable": "true",
    "brokerTopicEnable": "true",
    "traceTopicEnable": "false",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "regionId": "DefaultRegion",
    "traceOn": "true",
    "flushConsumerOffsetInterval": "5000",
    "longPollingEnable": "true",
    "shortPollingTimeMills": "1000",
    "notifyConsumerIdsChangedEnable": "true",
    "registerNameServerPeriod": "30000",
    "registerBrokerTimeoutMills": "24000",
    "compressedRegister": "false",
    "rejectTransactionMessage": "false",
    "transactionTimeOut": "6000",
    "transactionCheckMax": "15",
    "transactionCheckInterval": "30000",
    "transactionOpMsgMaxSize": "4096",
    "channelExpiredTimeout": "120000",
    "mappedFileSizeCommitLog": "1073741824",
    "mappedFileSizeConsumeQueue": "6000000",
    "flushDiskType": "ASYNC_FLUSH",
    "brokerRole": "ASYNC_MASTER",
    "flushIntervalCommitLog": "500",
    "flushCommitLogThoroughInterval": "10000",
    "syncFlushTimeout": "5000",
    "flushIntervalConsumeQueue": "1000",
    "maxMessageSize": "4194304",
    "messageIndexEnable": "true",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "checkCRCOnRecover": "true",
    "fileReservedTime": "72",
    "deleteWhen": "04",
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "90",
    "cleanFileForciblyEnable": "true",
    "deleteFileBatchMax": "10",
    "cleanResourceInterval": "10000",
    "defaultQueryMaxNum": "32",
    "maxTransferBytesOnMessageInMemory": "262144",
    "maxTransferCountOnMessageInMemory": "32",
    "accessMessageInMemoryMaxRatio": "40",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "serverChannelMaxIdleTimeSeconds": "120",
}


@pytest.mark.parametrize(("role", "key", "item"), EVERY_SETTING)
def test_every_default_survives_the_way_through_its_text(
    role: str, key: str, item: Setting
) -> None:
    """What `--print-config` shows of a default is taken back as the same value."""
    assert item.parse(to_text(item.default), key) == item.default


@pytest.mark.parametrize(("role", "key", "item"), EVERY_SETTING)
def test_every_key_reaches_its_field(role: str, key: str, item: Setting) -> None:
    """A key given with another value changes exactly the field that it names."""
    other = _other_text(item)
    overrides = {**_GO_TOGETHER.get(key, {}), key: other}
    settings = load_settings(role, overrides=overrides)  # type: ignore[arg-type]
    assert to_text(getattr(getattr(settings, item.section), item.name)) == other
    assert settings.sources[key] == "command line"


@pytest.mark.parametrize("config_class", CONFIG_CLASSES)
def test_every_field_is_documented_with_its_default(config_class: type) -> None:
    """Below each field stands what it means and what it is by default."""
    body = ast.parse(inspect.getsource(config_class)).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            documented[statement.target.id] = ast.literal_eval(following.value)
    assert list(documented) == [field.name for field in dataclasses.fields(config_class)]
    for name, text in documented.items():
        assert "efault" in text or "(default)" in text, name


def test_defaults_are_those_of_rocketmq() -> None:
    """A setting that exists in RocketMQ has its default, unless its documentation says
    otherwise."""
    ours = {**properties_of(Settings(role="namesrv")), **properties_of(Settings(role="broker"))}
    assert {key: ours[key] for key in ROCKETMQ_DEFAULTS} == ROCKETMQ_DEFAULTS


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("broker_ip1", "brokerIP1"),
        ("check_crc_on_recover", "checkCRCOnRecover"),
        ("enabled_append_prop_crc", "enabledAppendPropCRC"),
    ],
)
def test_irregular_keys_are_spelt_as_in_rocketmq(name: str, key: str) -> None:
    """Where RocketMQ's spelling cannot be derived from the field's name, the field gives it."""
    assert role_settings("broker")[key].name == name
    assert camel_case(name) != key


def test_no_key_is_both_supported_and_not() -> None:
    """A key that has an effect is never answered with the warning that it has none."""
    supported = {*role_settings("broker"), *role_settings("namesrv")}
    assert supported & UNSUPPORTED_KEYS == set()


def test_standalone_tells_the_two_ports_apart() -> None:
    """Keys that broker and name server share are the broker's; the name server's have a prefix."""
    keys = role_settings("standalone")
    assert keys["listenPort"].section == "broker"
    assert keys["namesrvListenPort"].section == "namesrv"
    assert keys["scanNotActiveBrokerInterval"].section == "namesrv"
    assert "namesrvHttpPort" not in keys


@pytest.mark.parametrize(("given", "rounded"), [(20, 20), (21, 40), (6_000_000, 6_000_000)])
def test_a_consume_queue_file_holds_whole_units(given: int, rounded: int) -> None:
    """A size that is no multiple of 20 is rounded up to one."""
    config = MessageStoreConfig(mapped_file_size_consume_queue=given)
    assert config.mapped_file_size_consume_queue == rounded


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("mappedFileSizeCommitLog", "65535", "must be at least 65536"),
        ("mappedFileSizeCommitLog", "1g", "must be a whole number"),
        ("mappedFileSizeCommitLog", "", "must be a whole number"),
        ("flushDiskType", "sync", "must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("brokerRole", "MASTER", "must be one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("brokerId", "1", "must be 0 unless brokerRole=SLAVE"),
        ("brokerId", "1001", "must be at most 1000"),
        ("inSyncReplicas", "3", "must not be above totalReplicas=2"),
        ("haMasterAddress", "a:1;b:0", "must be host:port"),
        ("leaseName", "Mq_g1", "must be the name of an object of Kubernetes"),
        ("leaseSeconds", "5", "must be at least 6"),
        ("podName", "mq-g1", "must be the name of a pod of a StatefulSet"),
        ("podUid", "a/b", "must have letters, digits and - only"),
        ("autoCreateTopicEnable", "yes", "must be true or false"),
        ("deleteWhen", "24", "must be hours of the day"),
        ("deleteWhen", "4am", "must be hours of the day"),
        ("messageDelayLevel", "1s,5s", "must be times such as"),
        ("messageDelayLevel", "1s 1000000d", "must not have a time of more than 5"),
        ("namesrvAddr", "localhost", "must be host:port"),
        ("namesrvAddr", "a:1;b:0", "must be host:port"),
        ("diskMaxUsedSpaceRatio", "96", "must be at most 95"),
        ("listenPort", "65536", "must be at most 65535"),
        ("brokerName", "", "must not be empty"),
        ("maxMessageSize", "١٢", "must be a whole number"),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(key: str, text: str, reason: str) -> None:
    """The error names the key, the value and what would be right; RocketMQ takes these silently."""
    with pytest.raises(ConfigError) as caught:
        load_settings("broker", overrides={key: text})
    assert str(caught.value).startswith(f"{key}={text}: {reason}")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"podName": "mq-g1-1"}, "podName=mq-g1-1: must end with -0, as brokerId says"),
        ({"podName": ""}, "podName=: must end with -0, as brokerId says"),
        ({"podUid": ""}, "podUid=: must be set with leaseName"),
        ({"brokerRole": "SLAVE"}, "brokerRole=SLAVE: must be SYNC_MASTER or ASYNC_MASTER"),
        ({"brokerId": "2", "podName": "mq-g1-2"}, "brokerId=2: must be below totalReplicas=2"),
    ],
)
def test_a_lease_needs_a_pod(overrides: dict[str, str], sentence: str) -> None:
    """Where a Lease says who leads, every replica says which pod it is, and none is a SLAVE."""
    pod = {"leaseName": "mq-g1", "brokerRole": "SYNC_MASTER", "podName": "mq-g1-0", "podUid": "u"}
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load_settings("broker", overrides={**pod, **overrides})
    load_settings("broker", overrides={**pod, "podName": "mq-g1-1", "brokerId": "1"})


def test_replicas_that_speak_tls_only_connect_by_tls() -> None:
    """Else each would refuse the others, and nobody would say so before it is needed."""
    slave = {"brokerRole": "SLAVE", "brokerId": "1", "totalReplicas": "2"}
    enforcing = {"tls.server.mode": "enforcing"}
    with pytest.raises(
        ConfigError, match=r"tls\.enable=false: must be true with tls\.server\.mode"
    ):
        load_settings("broker", overrides={**slave, **enforcing})
    load_settings("broker", overrides={**slave, **enforcing, "tls.enable": "true"})
    load_settings("broker", overrides={**slave, "tls.server.mode": "permissive"})
    load_settings("broker", overrides=enforcing)


@pytest.mark.parametrize("guard", ["authenticationEnabled", "aclEnable"])
@pytest.mark.parametrize(
    "replica",
    [
        {"brokerRole": "SYNC_MASTER"},
        {"brokerRole": "SLAVE", "brokerId": "1"},
        {"haListenPort": "0"},
        {"leaseName": "g", "brokerRole": "ASYNC_MASTER", "podName": "g-0", "podUid": "u"},
    ],
)
def test_the_link_of_a_guarded_broker_is_shut_as_well(guard: str, replica: dict[str, str]) -> None:
    """Else whoever reaches haListenPort gets every message without a signature."""
    shut = {
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require",
        "tls.enable": "true",
    }
    load_settings("broker", overrides=replica)
    load_settings("broker", overrides={guard: "true"})
    for open_still in (
        {},
        shut | {"tls.server.need.client.auth": "optional"},
        shut | {"tls.server.mode": "permissive"},
    ):
        with pytest.raises(ConfigError, match=f"haSecretFile=: must be set with {guard}=true"):
            load_settings("broker", overrides={guard: "true"} | replica | open_still)
    load_settings("broker", overrides={guard: "true", "haSecretFile": "/s"} | replica)
    load_settings("broker", overrides={guard: "true"} | replica | shut)


@pytest.mark.parametrize("text", ["04", "04;16", "00;23"])
def test_several_hours_of_deletion_are_taken(text: str) -> None:
    """RocketMQ joins the hours by `;`."""
    assert load_settings("broker", overrides={"deleteWhen": text}).store.delete_when == text


def test_the_commit_log_lies_below_the_root_unless_named() -> None:
    """`~` is resolved, and storePathCommitLog moves the log alone."""
    config = MessageStoreConfig(store_path_root_dir="~/x")
    assert config.commit_log_dir == Path.home() / "x" / "commitlog"
    moved = dataclasses.replace(config, store_path_commit_log="/log")
    assert (moved.root_dir, moved.commit_log_dir) == (Path.home() / "x", Path("/log"))


def test_effective_values_show_where_each_came_from() -> None:
    """Every setting of the role is listed once, with its source."""
    settings = load_settings("broker", overrides={"listenPort": "1"})
    values = {item.key: item for item in effective_values(settings)}
    assert list(values) == list(role_settings("broker"))
    assert (values["listenPort"].value, values["listenPort"].source) == ("1", "command line")
    assert values["brokerName"].source == "default"


# What makes sense only together with another value of another key.
_GO_TOGETHER = {
    "authorizationEnabled": {"authenticationEnabled": "true"},
    "httpTokenReview": {"authenticationEnabled": "true"},
    "authUsersPath": {"authenticationEnabled": "true"},
    "initAuthenticationUser": {"authenticationEnabled": "true"},
    "plainAclFile": {"aclEnable": "true"},
    "tls.enable": {"tls.server.mode": "permissive"},
    "tls.server.certPath": {"tls.server.mode": "permissive"},
    "tls.server.need.client.auth": {"tls.server.mode": "permissive"},
    "tls.server.clientIdentity": {
        "authenticationEnabled": "true",
        "tls.server.mode": "permissive",
    },
    "brokerId": {"brokerRole": "SLAVE"},
    "brokerRole": {"brokerId": "1"},
    "inSyncReplicas": {"totalReplicas": "8"},
    "leaseName": {"podName": "mq-g1-0", "podUid": "u1"},
}


@pytest.mark.parametrize("key", ["listeners", "namesrvListeners"])
def test_a_listener_beside_enforced_tls_says_what_it_speaks(key: str) -> None:
    """Its own default is plain text, which nobody means who enforces TLS and says no more."""
    enforcing = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "/crt",
        "tls.server.keyPath": "/key",
    }
    silent = '[{"name":"outside","port":0}]'
    with pytest.raises(ConfigError) as caught:
        load_settings("standalone", overrides={**enforcing, key: silent})
    assert str(caught.value).startswith(f"{key}={silent}: outside would take plain text only")
    load_settings(
        "standalone", overrides={**enforcing, "tls.server.mode": "permissive", key: silent}
    )
    for tls in ("disabled", "enforcing"):
        said = f'[{{"name":"outside","port":0,"tls":"{tls}"}}]'
        load_settings("standalone", overrides={**enforcing, key: said})


def test_own_connections_by_tls_do_not_shut_the_ports() -> None:
    """What RocketMQ's clients have as their switch is none of a server's ports."""
    with pytest.raises(ConfigError, match=r"^tls\.enable=true: .*: set tls\.server\.mode$"):
        load_settings("standalone", overrides={"tls.enable": "true"})
    load_settings("standalone", environ={"MAILBOAT_TLS_ENABLE": "true"})
    load_settings("standalone", overrides={"tls.enable": "true", "tls.server.mode": "disabled"})
    load_settings("broker", overrides={"tls.enable": "true"})


@pytest.mark.parametrize(
    ("key", "text", "switch"),
    [
        ("authUsersPath", "/users", "authenticationEnabled"),
        ("initAuthenticationUser", "a secret", "authenticationEnabled"),
        ("plainAclFile", "/accounts", "aclEnable"),
        ("tls.server.certPath", "/tls.crt", "tls.server.mode"),
        ("tls.server.need.client.auth", "require", "tls.server.mode"),
    ],
)
def test_a_lock_without_its_switch_is_refused(key: str, text: str, switch: str) -> None:
    """Unless somebody said that it is to be off: a door stands open that somebody thinks shut."""
    with pytest.raises(ConfigError) as caught:
        load_settings("standalone", overrides={key: text})
    shown = "<hidden>" if key == "initAuthenticationUser" else text
    assert str(caught.value).startswith(f"{key}={shown}: has no effect without {switch}, which is")
    off = "disabled" if switch == "tls.server.mode" else "false"
    load_settings("standalone", overrides={key: text, switch: off})
    if key.startswith("tls."):
        load_settings("standalone", overrides={key: text, "httpTlsMode": "enforcing"})


def _other_text(item: Setting) -> str:
    """Return a legal text that differs from the default."""
    if isinstance(item.default, bool):
        return to_text(not item.default)
    if isinstance(item.default, int):
        if item.rules.minimum == item.rules.maximum:
            return str(item.default)
        step = 20 if item.name == "mapped_file_size_consume_queue" else 1
        above = item.default + step
        too_large = item.rules.maximum is not None and above > item.rules.maximum
        return str(item.default - step if too_large else above)
    if item.rules.choices:
        return item.rules.choices[-1]
    special = {
        "delete_when": "05",
        "message_delay_level": "1s",
        "namesrv_addr": "a:1",
        "ha_master_address": "a:1",
        "pod_name": "other-0",
        "http_token": "a-token-of-at-least-16",
        "listeners": '[{"name":"outside","port":10920}]',
        "node_ip": "192.0.2.1",
    }
    return special.get(item.name, "other")
