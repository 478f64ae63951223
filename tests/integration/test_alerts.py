"""The chart's alerts speak of metrics, labels and values that there are."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from certificates import Authority
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from replica_nodes import ReplicaNodes

from mailboat_operator.metrics import OperatorMetrics

_ALERTS = Path(__file__).parents[2] / "charts" / "mailboat" / "files" / "alerts.yaml"
_WORDS = frozenset({"sum", "by", "label_replace", "increase", "time", "absent", "or", "and"})
# By Prometheus, which scrapes pods.
_SCRAPED = frozenset({"namespace", "pod"})


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(_ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _used(expression: str) -> set[str]:
    """Return the names in an expression that are no function, label or text."""
    bare = re.sub(r'"[^"]*"|\bby \([^)]*\)|\{[^}]*\}|\[[^\]]*\]', "", expression)
    return set(re.findall(r"[a-z_]{2,}", bare)) - _WORDS


async def _exported(nodes: ReplicaNodes) -> dict[str, Metric]:
    texts = [OperatorMetrics().exposition().decode()]
    async with aiohttp.ClientSession() as session:
        url = f"http://{nodes.addresses(0)['http']}/metrics"
        async with session.get(url) as response:
            texts.append(await response.text())
    return {
        name: family
        for text in texts
        for family in text_string_to_metric_families(text)
        for name in (family.name, f"{family.name}_total")
    }


async def test_alerts_look_at_metrics_that_there_are(tmp_path: Path) -> None:
    """Each name is exported by a leader or an operator, and so is each labelled value."""
    pair = Authority(tmp_path / "certificates").issue("127.0.0.1")
    options = {
        "httpPort": "0",
        "cleanResourceInterval": "10",
        "tls.server.mode": "permissive",
        "tls.server.certPath": str(pair.certificate),
        "tls.server.keyPath": str(pair.key),
    }
    async with ReplicaNodes(tmp_path, 2, options) as nodes:
        await nodes.wait_http()
        await nodes.in_sync()
        await nodes.until(lambda: nodes.broker(0).store.cleaner.last_round_ms > 0)
        exported = await _exported(nodes)
    for rule in _rules():
        expression = rule["expr"]
        assert _used(expression), expression
        assert _used(expression) <= exported.keys(), expression
        for name, label, value in re.findall(r'(\w+)\{(\w+)!?="(\w+)"\}', expression):
            values = {sample.labels.get(label) for sample in exported[name].samples}
            assert value in values, (expression, values)


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule["alert"])
def test_alerts_are_worded(rule: dict[str, Any]) -> None:
    """Each says in one sentence what is wrong and where, and how urgent it is."""
    assert rule["alert"].startswith("Mailboat")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    summary = rule["annotations"]["summary"]
    assert summary.endswith(".")
    grouped = re.search(r"by \(([^)]*)\)", rule["expr"])
    for label in re.findall(r"\$labels\.(\w+)", summary):
        if grouped is not None:
            assert label in grouped[1].replace(" ", "").split(","), (label, rule["expr"])
        else:
            assert label in _SCRAPED | {"state", "topic", "group", "replica"}, label
