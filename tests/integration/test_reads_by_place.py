"""Requests that name a place of the log: none of them has the event loop wait for the disk."""

import threading
from pathlib import Path

import pytest
from transaction_broker import running

from mailboat.disk.real import RealDisk
from mailboat.model.message_id import decode_offset_message_id
from mailboat.protocol.codes import RequestCode, ResponseCode


class WatchedDisk(RealDisk):
    """A disk that knows which files of the log were read by the thread of the event loop."""

    def __init__(self) -> None:
        """Begin without any."""
        super().__init__()
        self._log_files: set[int] = set()
        self.reads_on_loop = 0

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Remember the files of the log."""
        fd = super().open(path, create=create, is_private=is_private)
        if "/commitlog/" in path:
            self._log_files.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Forget a file."""
        self._log_files.discard(fd)
        super().close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Count what the loop's thread reads."""
        if fd in self._log_files and threading.current_thread() is threading.main_thread():
            self.reads_on_loop += 1
        return super().pread(fd, size, position)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.VIEW_MESSAGE_BY_ID, {}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "TOOLS_CONSUMER", "delayLevel": 0}),
    ],
)
async def test_a_message_by_its_place_is_read_elsewhere(
    tmp_path: Path, code: int, fields: dict[str, object]
) -> None:
    """It may lie on a disk that hangs; nothing at a place is said as before."""
    disk = WatchedDisk()
    async with running(tmp_path, disk=disk) as (_, producer):
        sent = await producer.send({})
        place = decode_offset_message_id(sent.ext_fields["msgId"]).physical_offset
        for _ in range(2):
            disk.reads_on_loop = 0
            answer = await producer.call(code, fields | {"offset": place})
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert disk.reads_on_loop == 0
        for nowhere in (place + 1, 1 << 40, -1):
            answer = await producer.call(code, fields | {"offset": nowhere})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert str(nowhere) in (answer.remark or "")
