from typing import Any, final

@final
class SendRounds:
    def __new__(
        cls,
        *,
        store_host: bytes,
        broker_name: str,
        suffix: bytes,
        append_crc: bool,
        with_keys: bool,
        holds_answers: bool,
        max_body_bytes: int,
        delays_ms: list[int],
        is_guarded: bool,
    ) -> SendRounds: ...
    def learn(self, topic: str, queue_id: int, queue: Any) -> None: ...
    def allow(
        self, user: bytes, secrets: tuple[bytes, ...], peer_host: bytes, topic: bytes
    ) -> None: ...
    def withdraw(self, user: bytes, peer_host: bytes) -> None: ...
    def withdraw_all(self) -> None: ...
    def take(
        self,
        reads: list[tuple[Any, bytes]],
        physical_offset: int,
        room_bytes: int,
        store_timestamp_ms: int,
        delay_from_ms: int,
        takes_halves: bool,
        message_limit: int,
    ) -> tuple[Round, bytes]: ...
    def restore(
        self,
        records: bytes,
        places: bytes,
        are_halves: bool,
        queue_id: int,
        physical_offset: int,
        room_bytes: int,
        store_timestamp_ms: int,
    ) -> tuple[Round, bytes]: ...

@final
class Round:
    @property
    def size_bytes(self) -> int: ...
    @property
    def message_count(self) -> int: ...
    @property
    def taken(self) -> list[int]: ...
    @property
    def waiting(self) -> int: ...
    @property
    def queues(self) -> list[tuple[Any, int, bytes, int]]: ...
    @property
    def topics(self) -> list[tuple[str, int, int]]: ...
    @property
    def keys(self) -> bytes: ...
    def answers(self, code: int, names_places: bool) -> list[tuple[Any, bytes]]: ...

@final
class IndexSlots:
    def __new__(cls, slot_count: int) -> IndexSlots: ...
    def load(self, data: bytes) -> None: ...
    def copy(self) -> bytes: ...
    def newest(self, key_hash: int) -> int: ...
    def put(self, rows: bytes, entry_count: int, seconds: int) -> tuple[bytes, int]: ...

@final
class Condition:
    def judge(
        self, records: bytes, at: int, max_messages: int, max_bytes: int
    ) -> tuple[list[tuple[int, int]], int, int]: ...

def choose_places(
    units: bytes,
    queue_offset: int,
    max_messages: int,
    max_bytes: int,
    tags_codes: frozenset[int] | None,
) -> tuple[bytes, int, list[tuple[int, int]]] | None: ...
def check_records(
    records: bytes, places: bytes, topic: bytes, queue_id: int, check_crc: bool
) -> int: ...
def decode_records(body: bytes) -> tuple[list[tuple[Any, ...]], int]: ...
def decode_rows(
    body: bytes, at: int, end: int, tags: frozenset[bytes]
) -> tuple[list[bytes], list[bytes], list[tuple[Any, ...]], tuple[int, int, int], int]: ...
def property_values(texts: list[bytes], name: bytes) -> list[bytes | None]: ...
def scan_records(
    data: bytes, at: int, physical_offset: int, check_crc: bool, most_rows: int
) -> tuple[
    int,
    int,
    int,
    int,
    list[tuple[str, int, int, int, bytes, int]],
    list[tuple[bytes, int, int]],
]: ...
def read_condition(packed: bytes) -> Condition | None: ...
