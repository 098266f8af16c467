"""Fixtures of the console's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Directory of the pictures of this run."""
    directory = Path(os.environ.get("GAZETTE_TEST_PICTURES") or tmp_path / "pictures")
    directory.mkdir(parents=True, exist_ok=True)
    return directory
