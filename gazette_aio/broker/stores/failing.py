"""A store which fails, in place of one that works."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class FailingFragmentStore:
    """A store all of whose operations fail.

    Args:
        url: URL by which specs name the store.
        error: Returns what an operation raises; called in worker threads.
    """

    def __init__(self, url: str, error: Callable[[], Exception]) -> None:
        self._url = url
        self._error = error

    def __repr__(self) -> str:
        return f"<FailingFragmentStore {self._url}>"

    @property
    def url(self) -> str:
        """URL by which specs name the store."""
        return self._url

    def put(
        self,
        path: str,  # noqa: ARG002
        pieces: Iterable[bytes],  # noqa: ARG002
        *,
        gzipped: bool = False,  # noqa: ARG002
    ) -> None:
        """Fail."""
        raise self._error()

    def make_durable(self, path: str) -> None:  # noqa: ARG002
        """Fail."""
        raise self._error()

    def stat(self, path: str) -> NoReturn:  # noqa: ARG002
        """Fail."""
        raise self._error()

    def open(self, path: str) -> NoReturn:  # noqa: ARG002
        """Fail."""
        raise self._error()

    def list(
        self,
        prefix: str,  # noqa: ARG002
        *,
        skip: frozenset[str] = frozenset(),  # noqa: ARG002
    ) -> NoReturn:
        """Fail."""
        raise self._error()

    def remove(self, path: str) -> None:  # noqa: ARG002
        """Fail."""
        raise self._error()

    def sign_get(self, path: str, seconds: float = 0.0) -> str:  # noqa: ARG002
        """Return no URL: clients which had one would fetch files past the broker."""
        return ""
