"""Settings that change while a broker runs, and values that make no sense together."""

import pytest

from mailboat.config import (
    Settings,
    change_settings,
    check_value,
    live_keys,
    load_settings,
    nearest_key,
    role_settings,
)
from mailboat.errors import ConfigError

RETENTION_KEYS = {
    "fileReservedTime",
    "readFileReservedTime",
    "deleteWhen",
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
    "diskExpireFreeBytes",
    "diskForceCleanFreeBytes",
    "diskRejectFreeBytes",
    "diskThresholdHysteresisPercent",
    "cleanFileForciblyEnable",
    "cleanUnconsumedFilesEnable",
    "deleteFileBatchMax",
    "cleanResourceInterval",
}


def test_what_retention_follows_is_live() -> None:
    """An operator steers all of it without a restart; sizes and paths need one."""
    assert live_keys() >= RETENTION_KEYS
    assert live_keys() <= set(role_settings("broker"))
    restart = {"mappedFileSizeCommitLog", "storePathRootDir", "brokerName", "shutdownDrainSeconds"}
    assert live_keys().isdisjoint(restart)


def test_the_name_server_of_a_standalone_broker_stays() -> None:
    """Its address is not in the configuration, so a change would drop it."""
    assert live_keys() - live_keys("standalone") == {"namesrvAddr"}


def test_one_pair_is_checked_by_itself() -> None:
    """The value comes back typed; what is wrong comes back as one sentence."""
    assert check_value("fileReservedTime", "48") == 48
    assert check_value("cleanFileForciblyEnable", "false") is False
    for key, text, reason in (
        ("fileReservedTime", "2d", "must be a whole number"),
        ("fileReservedTim", "48", "the nearest one is fileReservedTime"),
        ("haSlaveFallbehindMax", "1", "has no effect here"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_value(key, text)
    assert nearest_key("filereservedTimes") == "fileReservedTime"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            {"diskMaxUsedSpaceRatio": "88"},
            "diskMaxUsedSpaceRatio=88: must not be above diskSpaceCleanForciblyRatio=85",
        ),
        (
            {"diskSpaceWarningLevelRatio": "80"},
            "diskSpaceCleanForciblyRatio=85: must not be above diskSpaceWarningLevelRatio=80",
        ),
        (
            {"diskExpireFreeBytes": "10", "diskRejectFreeBytes": "20"},
            "diskExpireFreeBytes=10: must not be below diskRejectFreeBytes=20",
        ),
        (
            {"diskForceCleanFreeBytes": "10", "diskRejectFreeBytes": "20"},
            "diskForceCleanFreeBytes=10: must not be below diskRejectFreeBytes=20",
        ),
        (
            {"readFileReservedTime": "73"},
            "readFileReservedTime=73: must not be above fileReservedTime=72",
        ),
        (
            {"diskMaxUsedSpaceRatio": "10", "diskThresholdHysteresisPercent": "10"},
            "diskThresholdHysteresisPercent=10: must be below diskMaxUsedSpaceRatio=10",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    overrides: dict[str, str], sentence: str
) -> None:
    """At the start and live alike; RocketMQ moves them silently."""
    with pytest.raises(ConfigError) as caught:
        load_settings("broker", overrides=overrides)
    assert (str(caught.value), caught.value.exit_code) == (sentence, 3)
    with pytest.raises(ConfigError) as caught:
        change_settings(load_settings("broker"), overrides, "live")
    assert str(caught.value) == sentence


def test_a_change_is_checked_as_a_whole() -> None:
    """Each of the two would be refused by itself beside the old value of the other."""
    before = load_settings("broker")
    changes = {"diskSpaceCleanForciblyRatio": "95", "diskSpaceWarningLevelRatio": "97"}
    after = change_settings(before, changes, "live")
    assert after.store.disk_space_clean_forcibly_ratio == 95
    assert after.sources["diskSpaceWarningLevelRatio"] == "live"
    assert before.store.disk_space_warning_level_ratio == 90
    with pytest.raises(ConfigError, match="must not be above"):
        change_settings(before, {"diskSpaceCleanForciblyRatio": "95"}, "live")


@pytest.mark.parametrize("key", ["mappedFileSizeCommitLog", "brokerName"])
def test_a_restart_key_is_refused(key: str) -> None:
    """To take it and change nothing would be a lie."""
    text = "65536" if key.startswith("mapped") else "x"
    with pytest.raises(ConfigError, match="takes effect with a restart only"):
        change_settings(Settings(role="broker"), {key: text}, "live")
