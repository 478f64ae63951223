"""Retention of a master: nothing goes that a replica of the set may lack."""

import asyncio
import random
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from replica_nodes import ReplicaNodes

from mailboat.broker.controller import BrokerController
from mailboat.client import Message, Producer
from mailboat.store.retention import Pressure

_SEGMENT = 262_144
_FULL = Pressure(in_window=True, expire=True, force_clean=True)


def _fill_disk(broker: BrokerController) -> None:
    broker.store.retention.pressure = lambda freed_bytes=0: _FULL  # type: ignore[method-assign]
    broker.change_config({"cleanUnconsumedFilesEnable": "true"})


async def _send(nodes: ReplicaNodes, count: int) -> None:
    """Send at once, and wait for no answers that the set does not give."""
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        sends = [
            producer.send(Message("topic", random.randbytes(50_000)), timeout_s=1)
            for _ in range(count)
        ]
        await asyncio.gather(*sends, return_exceptions=True)


async def test_a_full_disk_takes_no_segment_that_a_replica_of_the_set_lacks(
    tmp_path: Path,
) -> None:
    """A slave that takes nothing keeps segments of an ASYNC_MASTER until it is out of the set."""
    options = {"mappedFileSizeCommitLog": str(_SEGMENT), "inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        await _send(nodes, 12)
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        replicas = nodes.broker(1).replicas
        assert replicas is not None
        had_end = nodes.broker(1).store.commit_log.end
        # As if it were about to delete queues.
        replicas.tables._deleting += 1
        await _send(nodes, 30)
        store, leading = nodes.broker(0).store, nodes.group(0).replica.leading
        assert leading is not None
        assert len(leading.required()) == 2
        _fill_disk(nodes.broker(0))

        def takes_all_it_may() -> bool:
            store.clean()
            assert store.commit_log.start <= had_end or len(leading.required()) == 1
            return store.commit_log.start > had_end

        # A checkpoint lets go of all that is not needed, then the set does.
        await nodes.until(takes_all_it_may)
        assert len(leading.required()) == 1
        replicas.tables._deleting -= 1
        replicas.tables.on_deleted()


async def test_a_slave_with_room_is_not_told_as_full(tmp_path: Path) -> None:
    """That another one leads is no want of room, which would have its volume grow."""
    async with ReplicaNodes(tmp_path, 2, {"httpPort": "0"}) as nodes:
        await nodes.wait_http()
        await nodes.in_sync()
        assert nodes.broker(1).store.refusal() == "this replica does not lead"
        url = f"http://{nodes.addresses(1)['http']}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/api/v1/retention") as response:
                assert (await response.json())["refusal"] is None
            async with session.get(f"{url}/metrics") as response:
                families = text_string_to_metric_families(await response.text())
        [state] = [family for family in families if family.name == "store_write_state"]
        assert {sample.labels["state"]: sample.value for sample in state.samples} == {
            "open": 1,
            "rejecting": 0,
            "failed": 0,
        }
