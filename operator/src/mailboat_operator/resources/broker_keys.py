"""Which keys a group's broker.conf may hold, and what is remembered of that.

A broker of an older version ends at its start when its file has a key that it does not know. One
file serves several versions: `spec.image` may name an older or a newer one, and while pods are
replaced the old broker may start once more from what is meant for the new one. So the file holds

- the keys of `BASE_KEYS`, and what the user asks for;
- any other key only once a broker of the image that the pods are to have has listed it;
- nothing that the broker that runs now, or one of that image, does not list.

A pod that is being made anew cannot be asked, so what its image listed stands in the file itself:

    # Written by mailboat-operator
    # keys of registry.example/mailboat:1; left out: routeKeptSeconds
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mailboat.config import OPERATOR_MARK
from mailboat.config.properties import parse_properties
from mailboat.errors import ConfigError

BASE_KEYS: Final = frozenset(
    {
        "brokerClusterName",
        "brokerIP1",
        "brokerId",
        "brokerName",
        "deleteWhen",
        "diskExpireFreeBytes",
        "diskForceCleanFreeBytes",
        "diskMaxUsedSpaceRatio",
        "diskRejectFreeBytes",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "diskThresholdHysteresisPercent",
        "fileReservedTime",
        "httpPort",
        "listenPort",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "maxHashSlotNum",
        "maxIndexNum",
        "namesrvAddr",
        "readFileReservedTime",
        "shutdownDrainSeconds",
        "storePathRootDir",
    }
)
"""What every broker knows that an operator ever ran; the list never grows."""

_NAME_KEY: Final = "brokerName"
_MEMORY: Final = re.compile(r"^# keys of (?P<image>\S+); left out: (?P<keys>\S+)$", re.MULTILINE)
_NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class ImageKeys:
    """What is known of the keys that brokers of one image take."""

    image: str
    is_own: bool
    """Whether it is the operator's default, so that it knows at least the keys of its brokers."""

    listed: frozenset[str] | None = None
    """What a running broker of the image lists; None if none says so now."""

    is_remembered: bool = False
    """Whether one did earlier."""

    lacking: frozenset[str] = frozenset()
    """Keys that were left out then."""

    having: frozenset[str] = frozenset()
    """Keys that were written then."""

    def takes(self, key: str) -> bool | None:
        """Return whether a broker of the image takes a key; None if that is not known."""
        if self.listed is not None:
            return key in self.listed
        if key in self.lacking:
            return False
        return True if key in self.having else None

    def may_take(self, key: str) -> bool:
        """Return whether a key that the operator does not know may be one of the image's."""
        taken = self.takes(key)
        return not self.is_own if taken is None else taken


def listed_keys(config: Mapping[str, str] | None) -> frozenset[str] | None:
    """Return the keys of a broker's own list of its settings; None if that is not whole."""
    return frozenset(config) if config is not None and _NAME_KEY in config else None


def keys_of_image(
    image: str,
    is_own: bool,
    listed: Iterable[tuple[str, frozenset[str]]],
    config_files: Iterable[str],
) -> ImageKeys:
    """Put together what is known of an image.

    Args:
        image: The image that the pods are to have.
        is_own: Whether it is the operator's default.
        listed: Image and keys of each broker that lists them now.
        config_files: The groups' present broker.conf.
    """
    of_image = [keys for other, keys in listed if other == image]
    lacking: set[str] = set()
    having: set[str] = set()
    is_remembered = False
    for text in config_files:
        found = _MEMORY.search(text)
        if found is None or found["image"] != image:
            continue
        is_remembered = True
        lacking |= set(found["keys"].split(",")) - {_NONE}
        having |= _keys_in(text)
    return ImageKeys(
        image=image,
        is_own=is_own,
        listed=frozenset.intersection(*of_image) if of_image else None,
        is_remembered=is_remembered,
        lacking=frozenset(lacking),
        having=frozenset(having - lacking),
    )


def settings_that_fit(
    settings: Mapping[str, str],
    asked: Collection[str],
    image_keys: ImageKeys,
    running: frozenset[str] | None,
) -> dict[str, str]:
    """Return the settings that the file may hold.

    Args:
        settings: All that the group's broker should work with.
        asked: Keys that the user gave.
        image_keys: What is known of the image that the pod is to have.
        running: What the broker that runs now lists; None if it does not say.
    """

    def fits(key: str) -> bool:
        if running is not None and key not in running:
            return False
        taken = image_keys.takes(key)
        return key in BASE_KEYS or key in asked if taken is None else taken

    return {key: value for key, value in settings.items() if fits(key)}


def file_head(image_keys: ImageKeys, wanted: Iterable[str]) -> str:
    """Return the comments that a broker.conf begins with.

    Args:
        image_keys: What is known of the image.
        wanted: Every key that is asked for or meant.
    """
    head = f"{OPERATOR_MARK}\n"
    if image_keys.listed is None and not image_keys.is_remembered:
        return head
    left_out = sorted(key for key in set(wanted) if image_keys.takes(key) is False)
    return f"{head}# keys of {image_keys.image}; left out: {','.join(left_out) or _NONE}\n"


def config_file(config_map: Mapping[str, Any] | None, name: str) -> str:
    """Return a file of a ConfigMap; empty if it is not there."""
    return str(((config_map or {}).get("data") or {}).get(name) or "")


def _keys_in(text: str) -> set[str]:
    try:
        return {item.key for item in parse_properties(text)}
    except ConfigError:
        return set()
