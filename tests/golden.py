"""Golden data recorded from a real Gazette, which `golden_data/README.md` describes."""

from __future__ import annotations

import atexit
import functools
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent / "golden_data"
(ARCHIVE,) = HOME.glob("*.tar.xz")


@functools.cache
def directory() -> Path:
    """Return the directory of golden data: `$GAZETTE_VECTORS`, else what the archive holds."""
    if named := os.environ.get("GAZETTE_VECTORS"):
        path = Path(named)
        if not path.is_dir():
            raise NotADirectoryError(f"GAZETTE_VECTORS names no directory: {named}")
        return path
    unpacked = tempfile.TemporaryDirectory(prefix="golden-data-")
    atexit.register(unpacked.cleanup)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(unpacked.name, filter="data")
    return Path(unpacked.name)


@functools.cache
def load(name: str) -> dict[str, Any]:
    """Return the content of the golden JSON file `name`."""
    data: dict[str, Any] = json.loads((directory() / name).read_text("utf-8"))
    return data
