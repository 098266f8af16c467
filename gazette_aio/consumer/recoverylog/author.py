"""Identity of a recorder, by which operations and journal registers name it."""

from __future__ import annotations

import secrets
from typing import Final, Self

import gazette_aio.protocol as pb

MAX_AUTHOR: Final = (1 << 32) - 1
"""Greatest id of an author."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"
_REGISTER: Final = "author"


class Author(int):
    """A random number that identifies a recorder, from 1 to `MAX_AUTHOR`.

    Raises:
        ValueError: The number is out of range.
    """

    def __new__(cls, number: int) -> Self:  # noqa: D102 - described by the class.
        if not 1 <= number <= MAX_AUTHOR:
            raise ValueError(f"invalid author ({number}; expected 1 <= author <= {MAX_AUTHOR})")
        return super().__new__(cls, number)

    @classmethod
    def random(cls) -> Self:
        """Return a new author from the system's source of randomness."""
        # Wire: other implementations never draw the greatest number.
        return cls(secrets.randbelow(MAX_AUTHOR - 1) + 1)

    def fence(self) -> pb.LabelSet:
        """Return the register that fences the log for this author."""
        digits, rest = "", int(self)
        while rest:
            rest, digit = divmod(rest, 32)
            digits = _DIGITS[digit] + digits
        return pb.label_set(_REGISTER, digits)
