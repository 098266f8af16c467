"""Texts of enum values, including values of newer servers that this library doesn't know."""

from __future__ import annotations

from typing import Any


def shown_name(enum: Any, number: int) -> str:
    """Return the name of an enum value, or a text such as `UNKNOWN(7)` for an unknown value.

    Args:
        enum: A generated enum.
        number: The value.
    """
    return str(enum.Name(number)) if number in enum.values() else f"UNKNOWN({number})"
