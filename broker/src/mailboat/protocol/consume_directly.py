"""How a consumer fared with a message that it was told to consume: the answer to 309.

Source: apache/rocketmq remoting/protocol/body/{ConsumeMessageDirectlyResult,CMResult}.java
"""

from enum import Enum

import msgspec

from mailboat.protocol.bodies import encode_body


class ConsumeResult(Enum):
    """What the handler did; the values are the wire's."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"


class _DirectResultBody(msgspec.Struct, rename="camel", gc=False):
    order: bool
    auto_commit: bool
    consume_result: ConsumeResult
    remark: str | None
    spent_time_mills: int


def encode_direct_result(
    result: ConsumeResult, *, order: bool, remark: str | None, spent_ms: int
) -> bytes:
    """Write the answer to 309."""
    return encode_body(_DirectResultBody(order, True, result, remark, spent_ms))
