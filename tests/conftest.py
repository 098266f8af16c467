"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import golden

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile(
    "ci",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


@pytest.fixture
def vectors() -> Path:
    """Directory of golden data."""
    return golden.directory()
