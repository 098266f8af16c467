"""Protocol of the spans that a client, its publishers and its consumers make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Span(Protocol):
    """An operation in progress."""

    def set(self, name: str, value: str | float) -> None:
        """Set an attribute, such as `gazette.bytes`."""

    def end(self, error: BaseException | None = None) -> None:
        """End the operation, with its error. Called once."""


class Tracing(Protocol):
    """Makes spans. Called from the event loop; must return quickly, and must not raise."""

    def start(self, operation: str, journal: str = "", *, current: bool = False) -> Span:
        """Start the span of an operation, as a child of the current span.

        Args:
            operation: `append`, `read` or `transaction`.
            journal: The journal, if it's the operation of one.
            current: Whether it becomes the current span of the calling task, until it ends there.
        """
        ...

    def record(self, operation: str, seconds: float, attributes: Mapping[str, str | int]) -> None:
        """Record a span of a past operation, such as a transaction of a consumer.

        Args:
            operation: `consume`.
            seconds: Time since it began.
            attributes: Its attributes.
        """
