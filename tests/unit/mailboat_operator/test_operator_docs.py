"""Holds docs/operator.md and the code together."""

import re
from dataclasses import fields
from pathlib import Path

from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.conditions import REASONS
from mailboat_operator.rbac import CLUSTER_RULES, LEASE_RULES, NAMESPACED_RULES
from mailboat_operator.settings import PREFIX, OperatorSettings

_ROOT = Path(__file__).parents[3]
_TEXT = (_ROOT / "docs" / "operator.md").read_text(encoding="ascii")
_PLANNER = _ROOT / "operator" / "src" / "mailboat_operator" / "planner"


def test_every_setting_is_documented() -> None:
    """The table of the environment has each variable, and no other one."""
    wanted = {f"{PREFIX}{field.name.upper()}" for field in fields(OperatorSettings)}
    assert set(re.findall(rf"^\| `({PREFIX}\w+)`", _TEXT, re.MULTILINE)) == wanted


def test_every_reason_is_documented() -> None:
    """The table of conditions has each reason with its meaning, and no other one."""
    wanted = {(kind, reason, text) for kind, of in REASONS.items() for reason, text in of.items()}
    section = _TEXT.split("## Conditions", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", section, re.MULTILINE)) == wanted


def test_every_right_is_documented() -> None:
    """The table of rights has each rule."""
    for rule in (*NAMESPACED_RULES, *LEASE_RULES, *CLUSTER_RULES):
        group = rule.group or "core"
        assert f"| `{group}` | `{rule.resource}` | {', '.join(rule.verbs)} |" in _TEXT


def test_every_metric_is_documented() -> None:
    """The table of metrics has each metric with its labels."""
    documented = dict(re.findall(r"^\| `(operator_\w+?)(?:\{([\w,]+)\})?`", _TEXT, re.MULTILINE))
    metrics = OperatorMetrics()
    for name, value in vars(metrics).items():
        if name == "registry":
            continue
        (family,) = value.describe()
        full = family.name + ("_total" if family.type == "counter" else "")
        assert documented[full] == ",".join(value._labelnames), full


def test_every_event_is_documented() -> None:
    """Each reason that a planner tells of by name is in the table of events."""
    section = _TEXT.split("## Events", 1)[1].split("\n## ", 1)[0]
    source = "".join(path.read_text(encoding="ascii") for path in _PLANNER.glob("*.py"))
    found = set(re.findall(r'Notify\(\s*"(?:Normal|Warning)",\s*"(\w+)"', source))
    assert len(found) > 5
    assert {reason for reason in found if f"`{reason}`" not in section} == set()
