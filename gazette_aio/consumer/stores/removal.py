"""Removal of the directory of a store, which is recorded elsewhere."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_logger = logging.getLogger(__name__)


def remove_directory(directory: Path) -> None:
    """Remove a directory, if it's there. A failure is logged. It blocks."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass  # It was removed before.
    except OSError:
        _logger.exception("failed to remove the directory of a store: %s", directory)
