"""The metrics: values of the right moment, and a bounded number of series."""

from prometheus_client.parser import text_string_to_metric_families

from mailboat.broker.stats import BrokerStats, FlowCounter
from mailboat.config import load_settings
from mailboat.namesrv.controller import NamesrvController
from mailboat.testing.virtual_time import VirtualTime
from mailboat.web.context import WebContext
from mailboat.web.metrics import BoundedFlows, MetricsPage


def _flow(messages: int, size_bytes: int = 0) -> FlowCounter:
    flow = FlowCounter(0.0)
    flow.messages, flow.size_bytes = messages, size_bytes
    return flow


def _messages(flows: BoundedFlows, table: dict[str, FlowCounter]) -> dict[str, float]:
    messages, _ = flows.metrics(table)
    return {sample.labels["topic"]: sample.value for sample in messages.samples}


def _values(page: bytes) -> dict[str, float]:
    families = text_string_to_metric_families(page.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_a_page_is_made_once_a_second_at_most() -> None:
    """Ten thousand scrapes a second cost no more than one."""
    clock = VirtualTime()
    context = WebContext(load_settings("namesrv"))
    page = MetricsPage(context, clock=clock.monotonic)
    assert _values(await page.render())["mailboat_serving"] == 0
    context.phase = "serving"
    clock.advance(0.99)
    assert _values(await page.render())["mailboat_serving"] == 0
    clock.advance(0.02)
    assert _values(await page.render())["mailboat_serving"] == 1


async def test_a_name_server_shows_its_own_numbers_only() -> None:
    """There are no broker metrics in a process without a broker."""
    settings = load_settings("namesrv")
    context = WebContext(settings, namesrv=NamesrvController(settings))
    values = _values(await MetricsPage(context).render())
    assert values["mailboat_namesrv_brokers"] == 0
    assert values["mailboat_namesrv_topics"] == 0
    assert values["process_resident_memory_bytes"] > 0
    assert "mailboat_messages_in_total" not in values


def test_topics_beyond_the_bound_get_no_series() -> None:
    """The first ones keep theirs, however many come after them."""
    flows = BoundedFlows(2)
    table = {f"t{number}": _flow(number) for number in range(1, 1001)}
    assert _messages(flows, table) == {"t1": 1, "t2": 2}


def test_a_free_series_goes_to_the_next_topic() -> None:
    """Topics that come later get series while there are any."""
    flows = BoundedFlows(2)
    assert _messages(flows, {"a": _flow(1)}) == {"a": 1}
    assert _messages(flows, {"a": _flow(1), "b": _flow(2), "c": _flow(3)}).keys() == {"a", "b"}


def test_a_counter_never_goes_back() -> None:
    """A deleted topic keeps its count, and one that is made again goes on from there."""
    flows = BoundedFlows(2)
    stats = BrokerStats()
    stats.record_put("a", 5, 500)
    assert _messages(flows, stats.topic_flows()) == {"a": 5}
    stats.forget_topic("a")
    assert _messages(flows, stats.topic_flows()) == {"a": 5}
    stats.record_put("a", 2, 200)
    messages, size = flows.metrics(stats.topic_flows())
    assert [sample.value for sample in messages.samples] == [7]
    assert [sample.value for sample in size.samples] == [700]
