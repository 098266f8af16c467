"""Queries of requests for journals, decoded strictly: an unknown key is an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_plus

from gazette_aio.protocol.go.text import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,64}", re.ASCII)
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True", "on"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


class QueryError(Exception):
    """A query is invalid. The text is for the client."""


class ReadQuery(NamedTuple):
    """Query of a read."""

    offset: int = 0
    block: bool = False


def parse_read_query(query: str) -> ReadQuery:
    """Parse `offset` and `block`, ignoring case. The last value of a key counts, unless it's empty.

    Raises:
        QueryError: A key isn't known, or a value can't be converted.
    """
    offset, block = ReadQuery()
    problems: dict[str, str] = {}
    for key, value in _pairs(query):
        try:
            match key.lower():
                case "offset":
                    offset = _integer(value) if value else offset
                case "block":
                    block = _boolean(value) if value else block
                case _:
                    problems[key] = f"schema: invalid path {quote(key)}"
        except ValueError:
            problems[key] = f"schema: error converting value for {quote(key)}"
    _raise_any(problems)
    return ReadQuery(offset, block)


def check_append_query(query: str) -> None:
    """Check that a query has no keys: an append takes none.

    Raises:
        QueryError: The query has a key.
    """
    _raise_any({key: f"schema: invalid path {quote(key)}" for key, _ in _pairs(query)})


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for part in query.split("&"):
        if not part:
            continue
        if ";" in part:
            raise QueryError("invalid semicolon separator in query")
        key, _, value = part.partition("=")
        yield _unescape(key), _unescape(value)


def _unescape(text: str) -> str:
    if bad := _BAD_ESCAPE.search(text):
        raise QueryError(f"invalid URL escape {quote(bad[0])}")
    return unquote_plus(text, errors="replace")


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text) or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    if text not in _TRUE and text not in _FALSE:
        raise ValueError(text)
    return text in _TRUE


def _raise_any(problems: dict[str, str]) -> None:
    if not problems:
        return
    others = len(problems) - 1
    suffix = f" (and {others} other error{'s' if others > 1 else ''})" if others else ""
    raise QueryError(next(iter(problems.values())) + suffix)
