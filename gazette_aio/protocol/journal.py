"""Journal names, and the tokens and path components in them."""

from __future__ import annotations

import functools
import re
from typing import Final

from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.go.text import byte_length, clean_path

TOKEN_SYMBOLS: Final = "-_+/."  # noqa: S105
"""Symbols of a token, besides letters and numbers of any script."""
PATH_SYMBOLS: Final = TOKEN_SYMBOLS + "=%"
"""Symbols of a path component, besides letters and numbers of any script."""

MIN_JOURNAL_LENGTH: Final = 4
MAX_JOURNAL_LENGTH: Final = 512

# `\w` is exactly the Unicode categories L* and N*, and the underscore; a test pins this.
_SYMBOL_PATTERNS: Final = {
    TOKEN_SYMBOLS: re.compile(r"[\w\-+/.]*").fullmatch,
    PATH_SYMBOLS: re.compile(r"[\w\-+/.=%]*").fullmatch,
}


def validate_token(
    value: str, *, min_length: int, max_length: int, symbols: str = TOKEN_SYMBOLS
) -> None:
    """Check that `value` consists of letters, numbers and `symbols`.

    Args:
        value: Text to check.
        min_length: Least length in bytes of UTF-8.
        max_length: Greatest length in bytes of UTF-8.
        symbols: Allowed characters besides letters and numbers.

    Raises:
        ValidationError: The text is too short or too long, or has an invalid character.
    """
    length = byte_length(value)
    if not min_length <= length <= max_length:
        raise ValidationError(
            f"invalid length ({length}; expected {min_length} <= length <= {max_length})"
        )
    fullmatch = _SYMBOL_PATTERNS.get(symbols)
    if fullmatch is None:
        valid = all(char.isalnum() or char in symbols for char in value)
    else:
        valid = fullmatch(value) is not None
    if not valid:
        raise ValidationError(f"not a valid token ({value})")


def validate_path_component(value: str, *, min_length: int, max_length: int) -> None:
    """Check that `value` is a clean relative path; it may begin with `../`.

    Raises:
        ValidationError: The value isn't a token, isn't clean, or is absolute.
    """
    validate_token(value, min_length=min_length, max_length=max_length, symbols=PATH_SYMBOLS)
    # An empty value is an absent optional component.
    if value and clean_path(value) != value:
        raise ValidationError(f"must be a clean path ({value})")
    if value[:1] == "/":
        raise ValidationError(f"cannot begin with '/' ({value})")


def encodable(name: str, kind: str = "Journal") -> str:
    """Return the name of a journal, or of another kind of thing.

    Raises:
        ValidationError: It has a lone surrogate, so that no message can hold it.
    """
    try:
        f"{name}".encode()  # Other types are refused by the message.
    except UnicodeEncodeError:
        raise ValidationError(f"not a valid token ({name!a})", (kind,)) from None
    return name


def require_request(request: object, kind: type) -> None:
    """Raise TypeError unless `request` is the name of a journal, or a request of its kind."""
    if not isinstance(request, (str, kind)):
        expected = f"the name of a journal, or {kind.__name__}(…)"
        raise TypeError(f"request: expected {expected}, not {type(request).__name__}")


def split_meta(name: str) -> tuple[str, str]:
    """Split a journal name into the bare name, and its metadata including the `;`."""
    journal, separator, meta = name.partition(";")
    return journal, separator + meta


def strip_meta(name: str) -> str:
    """Return a journal name without its metadata."""
    return name.partition(";")[0]


def validate_journal(name: str, *, allow_parent: bool = True) -> None:
    """Check a journal name, which may have metadata after a `;`.

    Args:
        name: Name to check.
        allow_parent: Whether the name may begin with `../`, which is valid on the wire, but leads
            out of the root directory of a file store.

    Raises:
        ValidationError: The name isn't valid.
    """
    _validate_journal(name)
    if not allow_parent and name.startswith("../"):
        raise ValidationError(f"cannot begin with '../' ({name})")


# Errors aren't cached, so that an entry has at most 1 KiB.
@functools.lru_cache(maxsize=4096)
def _validate_journal(name: str) -> None:
    journal, separator, meta = name.partition(";")
    validate_path_component(journal, min_length=MIN_JOURNAL_LENGTH, max_length=MAX_JOURNAL_LENGTH)
    if separator:
        within(
            "metadata path segment",
            validate_path_component,
            meta,
            min_length=1,
            max_length=MAX_JOURNAL_LENGTH,
        )


class Journal(str):
    """Name of a journal. A plain `str` is accepted wherever a name is expected."""

    __slots__ = ()

    def split_meta(self) -> tuple[Journal, str]:
        """Return the bare name, and its metadata including the `;`."""
        name, meta = split_meta(self)
        return Journal(name), meta

    def strip_meta(self) -> Journal:
        """Return the name without its metadata."""
        return Journal(strip_meta(self))

    def validate(self, *, allow_parent: bool = True) -> None:
        """Check the name; see `validate_journal()`.

        Raises:
            ValidationError: The name isn't valid.
        """
        validate_journal(self, allow_parent=allow_parent)
