"""Offsets of a broadcasting consumer, in a file of its own machine.

The file holds `{"offsetTable":{queue:offset}}` as Java's offsets.json does. It is written to a
temporary file, synced and renamed, so a crash leaves the old or the new content.

Source: apache/rocketmq client/consumer/store/LocalFileOffsetStore.java.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from mailboat.errors import MailboatError, RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.queue_map import decode_offset_table, encode_offset_table


class LocalOffsets:
    """The offsets file of one group."""

    __slots__ = ("_offsets", "_path")

    def __init__(self, path: Path) -> None:
        """Use the file at `path`; it and its folder are made when they are first needed."""
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        """Read the file, if there is one.

        Raises:
            MailboatError: it cannot be read, or its content is not a table of offsets.
        """
        try:
            data = await asyncio.to_thread(self._path.read_bytes)
        except FileNotFoundError:
            return
        except OSError as error:
            raise MailboatError(
                f"{self._path}: offsets cannot be read: {error.strerror or error}"
            ) from error
        try:
            self._offsets = decode_offset_table(data)
        except RemoteProtocolError as error:
            raise MailboatError(
                f"{self._path}: not a table of offsets ({error}); delete it to begin anew"
            ) from error

    def get(self, queue: MessageQueue) -> int | None:
        """Return the stored offset of a queue, or None."""
        return self._offsets.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets, keeping those of other queues; on disk when it returns.

        Raises:
            MailboatError: the file cannot be written; the old one is still there.
        """
        merged = {**self._offsets, **offsets}
        if merged == self._offsets:
            return
        try:
            await asyncio.to_thread(_replace, self._path, encode_offset_table(merged))
        except OSError as error:
            raise MailboatError(
                f"{self._path}: offsets cannot be written: {error.strerror or error}"
            ) from error
        self._offsets = merged


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
