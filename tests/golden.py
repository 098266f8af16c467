"""Look-up of golden data recorded from a real Gazette."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest


@functools.cache
def directory() -> Path:
    """Return the directory of golden data, or skip the test which asks for it.

    It is `$GAZETTE_VECTORS`, else `../shared/vectors` beside the checkout. On CI its absence fails.
    """
    named = os.environ.get("GAZETTE_VECTORS")
    path = Path(named) if named else Path(__file__).parents[1].parent / "shared" / "vectors"
    if path.is_dir():
        return path
    reason = f"no golden data at {path} (set GAZETTE_VECTORS)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@functools.cache
def load(name: str) -> dict[str, Any]:
    """Return the content of the golden JSON file `name`."""
    data: dict[str, Any] = json.loads((directory() / name).read_text("utf-8"))
    return data
