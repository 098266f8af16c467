"""Texts of enum values for people, who may look at servers that are newer than this library."""

from __future__ import annotations

from typing import Any


def shown_name(enum: Any, number: int) -> str:
    """Return the name of an enum value, or `UNKNOWN(7)` of a value that isn't known here.

    Args:
        enum: A generated enum.
        number: The value.
    """
    return str(enum.Name(number)) if number in enum.values() else f"UNKNOWN({number})"
