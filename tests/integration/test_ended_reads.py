"""Sends whose peer then says no more, or nothing that can be read: each one is answered."""

import asyncio
from pathlib import Path

import pytest
from raw_client import connected, running_broker
from test_heavy_requests import frame

from mailboat.protocol.codes import RequestCode

SEND = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "j": "0", "k": "false",
}  # fmt: skip
PLAIN = "UNIQ_KEY\x01U\x02"
RARE = "a\x01b\x02"
DAMAGE = b"\x7f" * 16


@pytest.mark.parametrize("end", [b"", DAMAGE], ids=["half-closed", "damaged"])
@pytest.mark.parametrize("properties", [[PLAIN], [RARE], [PLAIN, RARE], [RARE, PLAIN]])
async def test_what_was_sent_before_the_end_is_answered(
    tmp_path: Path, properties: list[str], end: bytes
) -> None:
    """Whether the compiled core takes a send or leaves it makes no difference."""
    async with running_broker(tmp_path) as broker, connected(broker, "c@1") as (client,):
        await client.make_topic("T")
        await client.send("T", b"x", properties=PLAIN)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        sends = [
            frame(RequestCode.SEND_MESSAGE_V2, b"x", SEND | {"i": text}, opaque)
            for opaque, text in enumerate(properties, 1)
        ]
        writer.write(b"".join(sends) + end)
        if not end:
            writer.write_eof()
        answers = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert answers.count(b'"code":0,') == len(sends)
