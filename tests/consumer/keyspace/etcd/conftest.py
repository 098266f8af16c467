"""An Etcd of a test's own, which it may stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd import Etcd


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An Etcd which reports progress often, and answers history in small pieces."""
    options = (
        "--experimental-watch-progress-notify-interval=50ms",
        "--max-request-bytes=20000",
    )
    with Etcd(tmp_path / "etcd", *options) as server:
        yield server
