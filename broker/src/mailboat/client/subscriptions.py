"""What a consumer takes of a topic: tags, or an SQL condition over the messages' properties.

Tags are compared once more by the client, since brokers compare their hashes. SQL conditions are
the broker's alone; it is asked at the start whether it understands them.

Source: apache/rocketmq client/consumer/MessageSelector.java,
remoting/protocol/filter/FilterAPI.java and client/impl/factory/MQClientInstance.java
(checkClientInBroker).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.errors import IllegalMessageError
from mailboat.model.subscription import (
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    SubscriptionData,
    build_subscription,
)
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.heartbeat import CheckClientConfig, encode_check_client_config


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 condition over the properties of messages; the others are not delivered.

    Java brokers need `enablePropertyFilter=true` for it.

    Example:
        consumer.subscribe("orders", Sql("amount > 100 AND region IN ('eu', 'us')"), handler)
    """

    condition: str


Expression = str | Sql
"""Tags such as `TagA || TagB`, `*` for every message, or an SQL condition."""


def subscribe_to(topic: str, expression: Expression, sub_version: int = 0) -> SubscriptionData:
    """Return the subscription that `expression` means.

    Raises:
        IllegalMessageError: the expression names no tag, or the condition is empty.
    """
    if not isinstance(expression, Sql):
        return build_subscription(topic, expression, sub_version)
    if not expression.condition.strip():
        raise IllegalMessageError(f"the SQL condition for topic {topic} is empty; use '*' for all")
    return SubscriptionData(
        topic,
        expression.condition,
        sub_version=sub_version,
        expression_type=EXPRESSION_SQL92,
    )


async def check_subscriptions(
    instance: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData]
) -> None:
    """Ask the brokers of each topic whether they understand its condition; tags need no asking.

    A topic without a known route is left out: its brokers are not known yet.

    Raises:
        BrokerError: a broker does not, or does not filter by conditions; the remark says why.
        RemotingError: a broker does not answer.
    """
    for subscription in subscriptions:
        if subscription.expression_type == EXPRESSION_TAG:
            continue
        check = CheckClientConfig(instance.client_id, group, subscription)
        body = encode_check_client_config(check)
        for address in instance.routes.topic_addresses(subscription.topic):
            await call(instance.remoting, address, RequestCode.CHECK_CLIENT_CONFIG, body=body)
