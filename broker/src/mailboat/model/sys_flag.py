"""Bits of a message's sysFlag and of a pull request's sysFlag.

Source: apache/rocketmq common/sysflag/MessageSysFlag.java and PullSysFlag.java.
"""

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
ANY_HOST_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_TYPE_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

CLIENT_BITS: Final = COMPRESSED | COMPRESSION_TYPE_MASK
"""What a client may say of its message. The rest is the broker's to say (several tags, the state of
a transaction) or the store's (how long the hosts are)."""

PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10
