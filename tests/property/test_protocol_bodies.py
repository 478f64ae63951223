"""Properties of the bodies: any bytes end well, also bytes that were nearly right."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailboat.errors import RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol import (
    bodies,
    client_connections,
    group_table,
    heartbeat,
    queue_map,
    register_broker,
    route,
    running_info,
    stats_bodies,
    topic_table,
)
from mailboat.protocol.lenient_json import loads

UNHURRIED = settings(deadline=None)  # other work on the machine is no failure
WIRE = Path(__file__).parents[1] / "golden" / "wire"


def decode_compressed(body: bytes) -> topic_table.TopicConfigTable:
    """Read the compressed form of a registration."""
    return register_broker.decode_register_broker(body, compressed=True)


DECODERS: dict[str, Any] = {
    "check-client": heartbeat.decode_check_client_config,
    "cluster-info": route.decode_cluster_info,
    "consume-stats": stats_bodies.decode_consume_stats,
    "consumer-connection": client_connections.decode_consumer_connection,
    "consumer-ids": bodies.decode_consumer_id_list,
    "consumer-offsets": stats_bodies.decode_consumer_offsets,
    "data-version": bodies.decode_data_version,
    "group-list": bodies.decode_group_list,
    "group-table": group_table.decode_group_table,
    "heartbeat": heartbeat.decode_heartbeat,
    "kv-table": bodies.decode_kv_table,
    "producer-connection": client_connections.decode_producer_connection,
    "register-broker.compressed": decode_compressed,
    "register-broker.plain": register_broker.decode_register_broker,
    "reset-offset": queue_map.decode_offset_table,
    "running-info": running_info.decode_running_info,
    "topic-list": bodies.decode_topic_list,
    "topic-route": route.decode_topic_route,
    "topic-stats": stats_bodies.decode_topic_stats,
    "topic-table": topic_table.decode_topic_table,
}
REPLACEMENTS = st.binary(max_size=4) | st.sampled_from(
    [b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"-1", b"1e9", b"9" * 30, b"{}", b"\xff"]
)


def test_every_golden_body_has_a_decoder_here() -> None:
    """A new golden body is fuzzed too."""
    names = {path.name for path in (WIRE / "5.5.0").iterdir()}
    frames = {name for name in names if name.endswith((".json", ".binary"))}
    assert set(DECODERS) == names - frames


@pytest.mark.parametrize("name", DECODERS)
@UNHURRIED
@given(body=st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_documented_error(name: str, body: bytes) -> None:
    """No body makes a decoder raise anything but RemoteProtocolError."""
    try:
        DECODERS[name](body)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize("name", DECODERS)
@UNHURRIED
@given(data=st.data())
def test_damaged_java_body_is_a_value_or_a_documented_error(name: str, data: st.DataObject) -> None:
    """Bodies of the real RocketMQ with some bytes replaced, inserted or cut end well."""
    body = (WIRE / data.draw(st.sampled_from(["4.9.8", "5.5.0"])) / name).read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(body)))
        end = min(len(body), start + data.draw(st.integers(0, 6)))
        body = body[:start] + data.draw(REPLACEMENTS) + body[end:]
    try:
        DECODERS[name](body)
    except RemoteProtocolError:
        pass


@UNHURRIED
@given(st.text(alphabet='{}[]:,"\\0123456789.eE+-truefalsn \n', max_size=60))
def test_any_text_is_a_value_or_a_documented_error(text: str) -> None:
    """Texts made of JSON's own characters end well in the lenient reader."""
    try:
        loads(text.encode())
    except RemoteProtocolError:
        pass


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@UNHURRIED
@given(JSON_VALUES)
def test_lenient_reader_agrees_with_the_strict_one(value: object) -> None:
    """Ordinary JSON reads the same beside a key that only the lenient reader takes."""
    text = bodies.encode_body(value)
    assert {"0": value} == loads(b"{0:" + text + b"}")


@UNHURRIED
@given(
    st.dictionaries(
        st.builds(
            MessageQueue,
            st.text(max_size=10),
            st.text(max_size=10),
            st.integers(-(2**31), 2**31 - 1),
        ),
        st.integers(-(2**63), 2**63 - 1),
        max_size=5,
    )
)
def test_offset_table_survives_the_round_trip(table: dict[MessageQueue, int]) -> None:
    """Queues with any names come back from raw object keys."""
    assert table == queue_map.decode_offset_table(queue_map.encode_offset_table(table))
