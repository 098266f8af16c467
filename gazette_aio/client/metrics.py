"""What a client counts, for those who want to know."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    """Receives counts as they accrue. Called from the event loop; must be quick, must not raise."""

    def append_bytes(self, journal: str, count: int) -> None:
        """Content bytes handed to an Append RPC, `gazette_append_bytes_total`."""

    def read_bytes(self, journal: str, count: int) -> None:
        """Content bytes received by a Read RPC, `gazette_read_bytes_total`."""


class NoMetrics:
    """Counts nothing."""

    def append_bytes(self, journal: str, count: int) -> None:
        """Ignore them."""

    def read_bytes(self, journal: str, count: int) -> None:
        """Ignore them."""
