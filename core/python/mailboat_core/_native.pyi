from typing import Any

def body_crc(body: bytes) -> int: ...
def check_records(
    records: bytes,
    units: bytes,
    queue_offset: int,
    chosen: bytes | None,
    count: int,
    check_crc: bool,
) -> int: ...
def decode_records(body: bytes) -> tuple[list[tuple[Any, ...]], int]: ...
