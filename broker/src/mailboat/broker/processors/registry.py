"""Every module of processors, and which code each of them answers."""

from mailboat.broker.context import BrokerContext
from mailboat.broker.processors import (
    absent_features,
    admin,
    auth_admin,
    client_admin,
    cold_data,
    config_admin,
    consumer_admin,
    end_transaction,
    group_admin,
    heartbeat,
    offset,
    offset_reset,
    order,
    producer_admin,
    query,
    replica_admin,
    reply,
    send_back,
    stats_admin,
    store_admin,
    topic_admin,
)
from mailboat.remoting.dispatcher import Dispatcher


def register_processors(dispatcher: Dispatcher, broker: BrokerContext) -> None:
    """Answer all requests of a broker but sends and pulls, which the dispatcher gathers."""
    for processors in (
        absent_features,
        admin,
        auth_admin,
        client_admin,
        cold_data,
        config_admin,
        consumer_admin,
        end_transaction,
        group_admin,
        heartbeat,
        offset,
        offset_reset,
        order,
        producer_admin,
        query,
        replica_admin,
        reply,
        send_back,
        stats_admin,
        store_admin,
        topic_admin,
    ):
        processors.register(dispatcher, broker)
