"""Checks of invariants, which all suites share."""

from __future__ import annotations


class BrokenInvariantError(Exception):
    """Something happened which must not happen, whatever fails."""


def require(condition: object, text: str) -> None:
    """Raise BrokenInvariantError with `text` unless `condition` holds."""
    if not condition:
        raise BrokenInvariantError(text)
