"""Errors of databases as errors of stores."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from gazette_aio.protocol.errors import StoreError


def as_store_error(error: Exception) -> StoreError:
    """Return a StoreError with the text of the database itself, which becomes a status."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return StoreError(str(error.orig))
    return StoreError(str(error))
