"""Attributes of a topic, and the text by which `updateTopic -a` changes them.

The text is `+name=value,-name`: add or change, remove. Only what the broker acts on, or what only
clients and proxies look at, is accepted; an attribute that would promise what is not built is
refused.

Source: apache/rocketmq common/TopicAttributes.java, common/attribute/AttributeParser.java and
AttributeUtil.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from mailboat.errors import IllegalMessageError


class _Rule(NamedTuple):
    values: tuple[str, ...]
    changeable: bool


_RULES: Final = {
    "queue.type": _Rule(("SimpleCQ",), changeable=False),
    "cleanup.policy": _Rule(("DELETE",), changeable=False),
    "message.type": _Rule(
        ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"), changeable=True
    ),
}


def check_attributes(attributes: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Refuse attributes that no topic may get; those that are `known` may stay.

    Raises:
        IllegalMessageError: an attribute or its value is not supported.
    """
    for name, value in attributes.items():
        if known.get(name) != value:
            _check_value(_rule(name), name, value)


def alter_attributes(current: dict[str, str] | None, changes: str) -> dict[str, str]:
    """Return the attributes after `changes`; `current` is None for a new topic.

    Raises:
        IllegalMessageError: the text is malformed, or names an attribute or a value that is not
            supported, or changes one that is fixed when the topic is made.
    """
    attributes = dict(current or {})
    seen = set()
    for change in filter(None, changes.split(",")):
        sign, (name, _, value) = change[0], change[1:].partition("=")
        if sign not in "+-" or not name or (sign == "+") != ("=" in change):
            raise IllegalMessageError(
                f"attribute change {change!r} is malformed; write +name=value or -name"
            )
        if name in seen:
            raise IllegalMessageError(f"attribute {name!r} is changed twice")
        seen.add(name)
        _check(name, value, is_new_topic=current is None, removes=sign == "-")
        if sign == "+":
            attributes[name] = value
        elif current is None or attributes.pop(name, None) is None:
            raise IllegalMessageError(f"attribute {name!r} cannot be removed: it is not set")
    return attributes


def _check(name: str, value: str, *, is_new_topic: bool, removes: bool) -> None:
    rule = _rule(name)
    if not is_new_topic and not rule.changeable:
        raise IllegalMessageError(f"attribute {name!r} is fixed when the topic is made")
    if not removes:
        _check_value(rule, name, value)


def _rule(name: str) -> _Rule:
    rule = _RULES.get(name)
    if rule is None:
        known = ", ".join(_RULES)
        raise IllegalMessageError(f"attribute {name[:32]!r} is not supported; known are {known}")
    return rule


def _check_value(rule: _Rule, name: str, value: str) -> None:
    if value not in rule.values:
        raise IllegalMessageError(
            f"attribute {name!r} cannot be {value[:32]!r}; it takes {', '.join(rule.values)}"
        )
