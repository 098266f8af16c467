"""Calls that block the event loop."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blockbuster import blockbuster_ctx

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def blocking_calls_refused() -> Generator[None]:
    """Have calls that block the event loop fail within the block.

    No garbage of earlier tests is collected meanwhile: the end of a gRPC server blocks, too.
    """
    gc.collect()
    gc.disable()
    try:
        with blockbuster_ctx():
            yield
    finally:
        gc.enable()
