"""The declared settings: keys, defaults, limits and documentation of every field."""

import ast
import dataclasses
import inspect
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
    "brokerId": {"brokerRole": "SLAVE"},
    "brokerRole": {"brokerId": "1"},
    "inSyncReplicas": {"totalReplicas": "8"},
}


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
    }
    return special.get(item.name, "other")
