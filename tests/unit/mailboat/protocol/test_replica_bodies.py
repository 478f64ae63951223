"""What mqadmin's haStatus and getBrokerEpoch read."""

import json

from mailboat.protocol.replica_bodies import (
    HaStatus,
    SlavesOwnStatus,
    SlaveStatus,
    encode_epoch_cache,
    encode_ha_status,
)


def test_ha_status_has_the_names_of_rocketmq() -> None:
    """Those of HARuntimeInfo; a master that has none is named by nothing."""
    slave = SlaveStatus("10.0.0.2:10912", 70, 7, True, 5, 77)
    status = HaStatus(True, 77, 1, [slave], SlavesOwnStatus())
    assert json.loads(encode_ha_status(status)) == {
        "master": True,
        "masterCommitLogMaxOffset": 77,
        "inSyncSlaveNums": 1,
        "haConnectionInfo": [
            {
                "addr": "10.0.0.2:10912",
                "slaveAckOffset": 70,
                "diff": 7,
                "inSync": True,
                "transferredByteInSecond": 5,
                "transferFromWhere": 77,
            }
        ],
        "haClientRuntimeInfo": {
            "activated": False,
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": 0,
            "maxOffset": 0,
            "transferredByteInSecond": 0,
        },
    }
    status = HaStatus(False, 0, 0, [], SlavesOwnStatus(master_addr="10.0.0.1:10912"))
    own = json.loads(encode_ha_status(status))["haClientRuntimeInfo"]
    assert own["masterAddr"] == "10.0.0.1:10912"


def test_epochs_end_where_the_next_begins() -> None:
    """The last one has the end that RocketMQ gives it, 2**63 - 1; an empty list is one."""
    written = encode_epoch_cache("C", "b", 1, [(16, 100), (9, 0)], 250)
    assert json.loads(written) == {
        "clusterName": "C",
        "brokerName": "b",
        "brokerId": 1,
        "epochList": [
            {"epoch": 9, "startOffset": 0, "endOffset": 100},
            {"epoch": 16, "startOffset": 100, "endOffset": 2**63 - 1},
        ],
        "maxOffset": 250,
    }
    assert json.loads(encode_epoch_cache("C", "b", 0, [], 0))["epochList"] == []
