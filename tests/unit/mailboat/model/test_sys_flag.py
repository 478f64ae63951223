"""Bits of the sysFlag."""

from mailboat.model import sys_flag


def test_bits_are_those_of_rocketmq() -> None:
    """A wrong bit would turn messages into something else for every client."""
    assert (sys_flag.COMPRESSED, sys_flag.MULTI_TAGS) == (0x1, 0x2)
    assert (sys_flag.TRANSACTION_PREPARED, sys_flag.TRANSACTION_COMMIT) == (0x4, 0x8)
    assert sys_flag.TRANSACTION_ROLLBACK == sys_flag.TRANSACTION_MASK == 0xC
    assert (sys_flag.BORN_HOST_V6, sys_flag.STORE_HOST_V6) == (0x10, 0x20)
    assert (sys_flag.NEED_UNWRAP, sys_flag.INNER_BATCH) == (0x40, 0x80)
    assert (sys_flag.COMPRESSION_LZ4, sys_flag.COMPRESSION_ZSTD) == (0x100, 0x200)
    assert sys_flag.COMPRESSED | sys_flag.COMPRESSION_ZLIB == 769
    assert (sys_flag.PULL_COMMIT_OFFSET, sys_flag.PULL_SUSPEND) == (1, 2)
    assert (sys_flag.PULL_SUBSCRIPTION, sys_flag.PULL_CLASS_FILTER) == (4, 8)
