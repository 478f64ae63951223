"""Attributes of a topic, and the text by which `updateTopic -a` changes them.

The text is `+name=value,-name`: add or change, remove. Only what the broker acts on, or what only
clients and proxies look at, is accepted; an attribute that would promise what is not built is
refused.

Source: apache/rocketmq common/TopicAttributes.java, common/attribute/AttributeParser.java and
AttributeUtil.java @ rocketmq-all-5.3.3.
"""

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
    rule = _RULES.get(name)
    if rule is None:
        known = ", ".join(_RULES)
        raise IllegalMessageError(f"attribute {name!r} is not supported; known are {known}")
    if not is_new_topic and not rule.changeable:
        raise IllegalMessageError(f"attribute {name!r} is fixed when the topic is made")
    if not removes and value not in rule.values:
        raise IllegalMessageError(
            f"attribute {name!r} cannot be {value!r}; it takes {', '.join(rule.values)}"
        )
