"""Replication, looked at with RocketMQ's own tools.

    907 GET_BROKER_HA_STATUS   908 RESET_MASTER_FLUSH_OFFSET   1007 GET_BROKER_EPOCH_CACHE

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java and
store/ha/DefaultHAService.java @ rocketmq-all-5.3.3.
"""

import time

from mailboat.broker.context import BrokerContext
from mailboat.broker.replicas.report import ReplicaReport
from mailboat.broker.replicas.service import ReplicaService
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, required_int
from mailboat.protocol.replica_bodies import (
    HaStatus,
    SlavesOwnStatus,
    SlaveStatus,
    encode_epoch_cache,
    encode_ha_status,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ReplicaAdminProcessor(controller)
    dispatcher.register(RequestCode.GET_BROKER_HA_STATUS, processor.ha_status)
    dispatcher.register(RequestCode.RESET_MASTER_FLUSH_OFFSET, processor.reset_master_flush_offset)
    dispatcher.register(RequestCode.GET_BROKER_EPOCH_CACHE, processor.epochs)


class ReplicaAdminProcessor:
    """Shows who has what of the log."""

    def __init__(self, broker: BrokerContext) -> None:
        """Look at `broker`."""
        self._broker = broker

    def ha_status(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the state of replication, of a master or of a slave."""
        end = self._broker.store.commit_log.end
        replicas = self._broker.replicas
        status = HaStatus(True, end, 0, [], SlavesOwnStatus())
        if replicas is not None and replicas.is_begun:
            report = replicas.report()
            status = _of_master(report) if report.role == "master" else _of_slave(report)
        return command.response(ResponseCode.SUCCESS, body=encode_ha_status(status))

    def reset_master_flush_offset(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Do nothing: what a slave knows of its master is what that one says."""
        required_int(command, "masterFlushOffset")
        return command.response(ResponseCode.SUCCESS)

    def epochs(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return which epochs are in the log, and where each begins."""
        replicas = self._broker.replicas
        if replicas is None or not replicas.is_begun:
            # RocketMQ's words of a broker without a controller.
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode")
        config = self._broker.settings.broker
        body = encode_epoch_cache(
            config.broker_cluster_name,
            config.broker_name,
            _shown_id(replicas, config.broker_id),
            replicas.group.replica.durable.epochs,
            self._broker.store.commit_log.end,
        )
        return command.response(ResponseCode.SUCCESS, body=body)


def _shown_id(replicas: ReplicaService, ordinal: int) -> int:
    registered_id = replicas.registered_id()
    return ordinal if registered_id < 0 else registered_id


def _of_master(report: ReplicaReport) -> HaStatus:
    slaves = [
        SlaveStatus(
            addr=peer.address,
            slave_ack_offset=peer.acked_end or 0,
            diff=report.end - (peer.acked_end or 0),
            in_sync=bool(peer.is_in_sync),
            transferred_byte_in_second=peer.bytes_per_second,
            transfer_from_where=peer.sent_end or 0,
        )
        for peer in report.peers
        if peer.is_linked
    ]
    slaves += [
        SlaveStatus(
            addr=slave.address,
            slave_ack_offset=slave.acked_end,
            diff=slave.lag_bytes,
            in_sync=False,
            transferred_byte_in_second=slave.bytes_per_second,
            transfer_from_where=slave.sent_end,
        )
        for slave in report.java_slaves
    ]
    in_sync = len(report.in_sync or ()) - 1
    return HaStatus(True, report.end, in_sync, slaves, SlavesOwnStatus())


def _of_slave(report: ReplicaReport) -> HaStatus:
    own = SlavesOwnStatus(master_flush_offset=report.confirmed_offset, max_offset=report.end)
    java = report.java_master
    master = java or next((peer for peer in report.peers if peer.leads), None)
    if master is not None:
        own.activated = report.role == "slave"
        own.master_addr = master.address
        own.transferred_byte_in_second = master.bytes_per_second
        now_ms = time.time_ns() // 1_000_000
        if master.silent_seconds is not None:
            own.last_read_timestamp = now_ms - int(master.silent_seconds * 1000)
        if master.unsaid_seconds is not None:
            own.last_write_timestamp = now_ms - int(master.unsaid_seconds * 1000)
    return HaStatus(False, 0, 0, [], own)
