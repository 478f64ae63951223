"""Test folders are no packages, so the helper modules beside this file are found by path."""

import sys
from pathlib import Path

import pytest

from mailboat.store import checkpointing, index_backlog, message_store

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def slow_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keys wait to be indexed, across slices of the background and up to a bound."""
    monkeypatch.setattr(index_backlog, "STEP_BYTES", 60)
    monkeypatch.setattr(index_backlog, "BACKLOG_MESSAGES", 20)
    for module in (message_store, checkpointing):
        monkeypatch.setattr(module, "_INDEX_SLICE_S", 0.0)
