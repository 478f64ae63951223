"""Tests of mailboat.protocol.group_table."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.group_table import (
    SubscriptionGroupTable,
    decode_group_config,
    decode_group_table,
    encode_group_config,
    encode_group_table,
)


def test_mqadmins_group_is_read() -> None:
    """The body of mqadmin updateSubGroup, unknown and null fields included."""
    config = decode_group_config(
        b'{"groupName":"CG","consumeEnable":true,"consumeFromMinEnable":false,'
        b'"consumeBroadcastEnable":false,"retryQueueNums":1,"retryMaxTimes":3,"brokerId":0,'
        b'"whichBrokerWhenConsumeSlowly":1,"groupRetryPolicy":{"type":"CUSTOMIZED"},'
        b'"subscriptionDataSet":null,"attributes":null}'
    )
    expected = SubscriptionGroupConfig(
        "CG", consume_from_min_enable=False, consume_broadcast_enable=False, retry_max_times=3
    )
    assert expected == config


def test_group_survives_the_round_trip() -> None:
    """Every field comes back, alone and in a table."""
    config = SubscriptionGroupConfig(
        "CG", False, False, False, True, 2, 3, 4, 5, False, 6, 7, {"a": "b"}
    )
    assert config == decode_group_config(encode_group_config(config))
    table = SubscriptionGroupTable(DataVersion(1, 2, 3), {"CG": config})
    assert table == decode_group_table(encode_group_table(table))


def test_group_without_a_name_is_a_protocol_error() -> None:
    """A nameless group is refused."""
    with pytest.raises(RemoteProtocolError):
        decode_group_config(b'{"retryMaxTimes":3}')
    with pytest.raises(RemoteProtocolError):
        decode_group_table(b'{"subscriptionGroupTable":{"CG":{}}}')
