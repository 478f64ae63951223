"""Client batches on the short way: from the body of a request to columns for the store.

Takes the batches that programs send: messages that carry the same properties in the same order,
nothing in them that only this broker may set or that asks for something unusual. Any other batch is
left to `mailboat.broker.processors.send`, which makes a message of each item; both store the same
bytes.
"""

from collections.abc import Sequence

from mailboat.broker.processors.send_rules import (
    MAX_BATCH_KEYS,
    MAX_STORED_PROPERTIES_BYTES,
    RARE_NAMES,
    TagsCodes,
)
from mailboat.model.batch import BatchColumns
from mailboat.model.property_columns import read_property_columns
from mailboat.model.sys_flag import CLIENT_BITS
from mailboat.protocol.send_header import SendFields
from mailboat.store.client_batch import ClientBatch


def read_client_batch(
    fields: SendFields,
    born_host: bytes,
    queue_id: int,
    items: BatchColumns,
    suffix: bytes,
    tags_codes: TagsCodes,
) -> ClientBatch | None:
    """Make one batch for the store of a decoded request, None when it needs the long way."""
    properties = read_property_columns(items.texts)
    if properties is None:
        return None
    unique_keys = properties.unique_keys
    if (
        not unique_keys
        or not all(unique_keys)
        or properties.wait == b""
        or not RARE_NAMES.isdisjoint(properties.names)
        or b"".join(properties.keys).count(b" ") > MAX_BATCH_KEYS
        or max(properties.sizes) + len(suffix) > MAX_STORED_PROPERTIES_BYTES
    ):
        return None
    return ClientBatch(
        topic=fields.topic,
        queue_id=queue_id,
        sys_flag=fields.sys_flag & CLIENT_BITS,
        born_timestamp_ms=fields.born_timestamp_ms,
        born_host=born_host,
        reconsume_times=fields.reconsume_times,
        wait_store_ok=properties.wait != b"false",
        flags=items.flags,
        bodies=items.bodies,
        befores=properties.befores,
        afters=properties.afters,
        text_sizes=properties.sizes,
        suffix=suffix,
        tags_codes=_tags_codes(properties.tags, len(unique_keys), tags_codes),
        unique_keys=unique_keys,
        keys=properties.keys,
    )


def _tags_codes(tags: Sequence[bytes], count: int, codes: TagsCodes) -> list[int]:
    if not tags:
        return [0] * count
    if tags.count(tags[0]) == count:
        return [codes[tags[0].decode()]] * count
    return [codes[tag.decode()] for tag in tags]
