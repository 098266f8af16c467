"""What a client counts, for those who want to know."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    """Receives counts as they accrue. Called from the event loop; must be quick, must not raise."""

    def append_bytes(self, journal: str, count: int) -> None:
        """Content bytes of an append which was committed, `gazette_append_bytes_total`."""

    def read_bytes(self, journal: str, count: int) -> None:
        """Content bytes which a Reader returned, `gazette_read_bytes_total`."""

    def fragment_open(
        self, journal: str, codec: str, fragment_bytes: int, content_length: int | None
    ) -> None:
        """A fragment file was opened, `gazette_fragment_open_total` and its siblings.

        Args:
            journal: The journal.
            codec: Name of the compression codec.
            fragment_bytes: Uncompressed bytes of the fragment.
            content_length: Bytes of the file as its server tells them, or None.
        """

    def read_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Uncompressed bytes read of a fragment file, `gazette_read_fragment_bytes_total`."""

    def discard_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Uncompressed bytes skipped in one, `gazette_discard_fragment_bytes_total`."""


class NoMetrics:
    """Counts nothing."""

    def append_bytes(self, journal: str, count: int) -> None:
        """Ignore them."""

    def read_bytes(self, journal: str, count: int) -> None:
        """Ignore them."""

    def fragment_open(
        self, journal: str, codec: str, fragment_bytes: int, content_length: int | None
    ) -> None:
        """Ignore it."""

    def read_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Ignore them."""

    def discard_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Ignore them."""
