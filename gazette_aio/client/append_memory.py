"""Memory of pending appends."""

from __future__ import annotations

from typing import Final

from gazette_aio.aio.garbage import keep_freed_memory

MEMORY_BYTES: Final = 32 << 20
"""Bytes of content that all services of a client retain in memory."""


class AppendMemory:
    """Memory that the pending appends of a client share, beside what each journal may have anyway.

    Args:
        free_bytes: Bytes of it.
    """

    def __init__(self, free_bytes: int = MEMORY_BYTES) -> None:
        self.free_bytes: int = free_bytes
        """Bytes that are left."""

    def reserve(self, size: int) -> bool:
        """Reserve bytes, and return whether so many were left."""
        if size > self.free_bytes:
            return False
        keep_freed_memory(MEMORY_BYTES)
        self.free_bytes -= size
        return True

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        self.free_bytes += size
