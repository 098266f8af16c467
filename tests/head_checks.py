"""Checks of reads beyond the write head, within a moment."""

from __future__ import annotations

import pytest

from gazette_aio.client.reads import head_check, retry_reader


def hasten_head_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reads look at the head soon, and confirm within a moment what they see."""
    monkeypatch.setattr(head_check, "CONFIRM_SECONDS", 0.1)
    monkeypatch.setattr(head_check, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(retry_reader, "SILENT_SECONDS", 0.01)
