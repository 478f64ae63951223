"""The store of a broker in a test: files that are quickly full, whatever the disk holds."""

from pathlib import Path
from typing import Any

from mailboat.config import MessageStoreConfig


def small_store(root: Path, **changes: Any) -> MessageStoreConfig:
    """Return the settings of a store below a folder.

    Sends are taken however full the machine's disk is, which is nothing a test of something else
    is about.
    """
    return MessageStoreConfig(
        **{
            "store_path_root_dir": str(root),
            "mapped_file_size_commit_log": 1 << 20,
            "max_hash_slot_num": 1000,
            "max_index_num": 1000,
            "disk_max_used_space_ratio": 95,
            "disk_space_clean_forcibly_ratio": 100,
            "disk_space_warning_level_ratio": 100,
            **changes,
        }
    )
