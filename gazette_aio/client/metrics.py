"""Protocol of the counters that a client feeds."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    """Receives counts. Called from the event loop; must return quickly, and must not raise."""

    def append_bytes(self, journal: str, count: int) -> None:
        """Count content bytes of a committed append, `gazette_append_bytes_total`."""

    def read_bytes(self, journal: str, count: int) -> None:
        """Count content bytes that a Reader returned, `gazette_read_bytes_total`."""

    def fragment_open(
        self, journal: str, codec: str, fragment_bytes: int, content_length: int | None
    ) -> None:
        """Count an opened fragment file, `gazette_fragment_open_total` and its siblings.

        Args:
            journal: The journal.
            codec: Name of the compression codec.
            fragment_bytes: Uncompressed bytes of the fragment.
            content_length: Bytes of the file according to its server, or None.
        """

    def read_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Count uncompressed bytes read of a fragment file, `gazette_read_fragment_bytes_total`."""

    def discard_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Count uncompressed bytes skipped in one, `gazette_discard_fragment_bytes_total`."""


class NoMetrics:
    """Metrics that count nothing."""

    def append_bytes(self, journal: str, count: int) -> None:
        """Ignore the count."""

    read_bytes = append_bytes

    def fragment_open(
        self, journal: str, codec: str, fragment_bytes: int, content_length: int | None
    ) -> None:
        """Ignore the counts."""

    def read_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Ignore the count."""

    discard_fragment_bytes = read_fragment_bytes
