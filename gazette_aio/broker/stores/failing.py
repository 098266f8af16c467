"""Fragment store that fails, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.protocol.url import redacted

if TYPE_CHECKING:
    from collections.abc import Callable


class FailingFragmentStore:
    """A store whose operations fail, except signing.

    Args:
        url: URL by which specs name the store.
        error: Returns the error to raise; called in worker threads.
    """

    def __init__(self, url: str, error: Callable[[], Exception]) -> None:
        self.url = url
        self._error = error

    def __repr__(self) -> str:
        return f"<FailingFragmentStore {redacted(self.url)}>"

    def _fail(self, *_args: object, **_options: object) -> Any:
        raise self._error()

    put: Callable[..., Any] = _fail
    make_durable: Callable[..., Any] = _fail
    stat: Callable[..., Any] = _fail
    open: Callable[..., Any] = _fail
    list: Callable[..., Any] = _fail
    remove: Callable[..., Any] = _fail

    def sign_get(self, path: str, seconds: float = 0.0) -> str:  # noqa: ARG002
        """Return no URL: with a URL, clients would bypass the failing store."""
        return ""
