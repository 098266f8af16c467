"""Parsers of option texts. Their ValueErrors say which text is expected."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import gazette_aio.protocol as pb
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.labels import validate_label
from gazette_aio.protocol.selector import is_selector_expression
from gazette_aio.spark.types import RESERVED, PartitionColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EARLIEST, LATEST = -2, -1

Positions: TypeAlias = "Literal['earliest', 'latest'] | Mapping[str, int]"
"""Offsets of journals by name, where -2 is the earliest and -1 the latest; or one for all."""

_MAX_INT64: Final = (1 << 63) - 1
_SIZE: Final = re.compile(r"(\d{1,18})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_NAME: Final = r"[^\W\d]\w*"
_REFERENCE: Final = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*")
_PARTITION: Final = re.compile(
    r"(?P<name>[^\W\d][\w.$-]*)(\s+(?P<type>string|array\s*<\s*string\s*>))?"
    r"(\s*=\s*(?P<label>\S+))?",
    re.IGNORECASE,
)
ALL_JOURNALS: Final = "*"
"""Selector of every journal."""

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SCHEMES: Final = ("http", "https", "unix")


def text(value: str) -> str:
    """Return a non-empty text."""
    if not value.strip():
        raise ValueError("expected a text that isn't empty")
    return value


def boolean(value: str) -> bool:
    """Return whether the text is `true`; the alternative is `false`."""
    return choice("true", "false")(value) == "true"


def choice(*choices: str) -> Callable[[str], str]:
    """Return a parser of texts which are one of the choices, in any case."""

    def parse(value: str) -> str:
        for each in choices:
            if value.strip().lower() == each.lower():
                return each
        raise ValueError(f"expected {' or '.join(choices)}")

    return parse


def count(value: str) -> int:
    """Return a number of at least 1."""
    if (number := _integer(value)) is None or not number:
        raise ValueError("expected a whole number of at least 1")
    return number


def milliseconds(value: str) -> int:
    """Return a time in milliseconds since 1970, of such a number or of ISO 8601."""
    if (number := _integer(value)) is not None:
        return number
    try:
        time = dt.datetime.fromisoformat(value.strip())
    except ValueError:
        time = None
    if time is not None:
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
        if (found := (zoned - _EPOCH) // dt.timedelta(milliseconds=1)) >= 0:
            return found
    raise ValueError(
        "expected milliseconds since 1970, or a time from then on such as 2013-01-01,"
        " 2013-01-01T12:30 or 2013-01-01T12:30:00+02:00, which is UTC unless it has a zone"
    )


def times(value: str) -> int | dict[str, int]:
    """Return a time in milliseconds since 1970, or times by names of journals."""
    if not value.lstrip().startswith("{"):
        return milliseconds(value)
    expected = (
        'expected JSON such as {"a/journal": 1700000000000}, in milliseconds since 1970,'
        ' or {"a/journal": "2023-11-14T22:13:20Z"}'
    )
    found = _pairs(value, expected)
    for name, time in found.items():
        try:
            journal(name)
        except ValueError as error:
            raise ValueError(f"{expected}: {name!r}: {error}") from None
        try:
            found[name] = milliseconds(time if isinstance(time, str) else json.dumps(time))
        except ValueError:
            raise ValueError(f"{expected}: time {time!r:.30} of {name!r}") from None
    return found


def _integer(value: str) -> int | None:
    value = value.strip()
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        return None
    number = int(value)
    return number if number <= _MAX_INT64 else None


def size(value: str) -> int:
    """Return a number of bytes of at least 1."""
    if match := _SIZE.fullmatch(value.strip()):
        bytes_ = int(match[1]) << _SHIFTS[(match[2] or "").lower()]
        if 0 < bytes_ <= _MAX_INT64:
            return bytes_
    raise ValueError("expected a positive number of bytes, such as 1048576, 64m or 128 MiB")


def seconds(value: str) -> float:
    """Return the seconds of a positive duration."""
    value = value.strip()
    try:
        number = float(value) if _SECONDS.fullmatch(value) else pb.parse_duration(value) / 1e9
    except pb.ValidationError:
        number = 0
    if number <= 0:
        raise ValueError(
            "expected a positive number of seconds, or a duration such as 90s or 1h30m"
        )
    return number


def endpoints(value: str) -> tuple[str, ...]:
    """Return the URLs of brokers."""
    expected = "expected URLs of brokers, separated by commas, such as http://localhost:8080"
    if "@" in value:
        raise ValueError("URLs of brokers can't have a user and a password: use option 'token'")
    found = _items(value, expected)
    for each in found:
        try:
            scheme = parse_endpoint(each).scheme
        except pb.ValidationError as error:
            raise ValueError(f"{expected}: {error}") from None
        if scheme not in _SCHEMES:
            raise ValueError(f"{expected}: the scheme must be one of {', '.join(_SCHEMES)}")
    return found


def selector(value: str) -> str:
    """Return the text of a label selector. `*` stands for the empty one."""
    if value.strip() == ALL_JOURNALS:
        return ""
    try:
        parsed = pb.parse_label_selector(value)
    except pb.ValidationError as error:
        raise ValueError(f"expected a label selector such as app=x,!old: {error}") from None
    if not parsed.include.labels and not parsed.exclude.labels:
        raise ValueError(f"it selects every journal: write {ALL_JOURNALS} if that's meant")
    return value


def journal(value: str) -> str:
    """Return the name of a journal."""
    value = value.strip()
    try:
        pb.validate_journal(value, allow_parent=False)
    except pb.ValidationError as error:
        advice = "; a selector goes into option 'selector'" if is_selector_expression(value) else ""
        raise ValueError(f"expected the name of a journal: {error}{advice}") from None
    if ";" in value:
        raise ValueError("expected the name of a journal, without metadata after a ';'")
    return value


def journals(value: str) -> tuple[str, ...]:
    """Return names of journals."""
    names = _items(value, "expected names of journals, separated by commas")
    return tuple(journal(name) for name in names)


def _items(value: str, expected: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in value.split(","))
    if not all(items):
        raise ValueError(expected)
    for item in items:
        if items.count(item) > 1:
            raise ValueError(f"{expected}: {item!r} occurs twice")
    return items


def prefix(value: str) -> str:
    """Return a prefix of the names of journals."""
    value = text(value).strip()
    try:
        validate_label(pb.Label(name="name", value=value, prefix=True), allow_prefix=True)
    except pb.ValidationError as error:
        raise ValueError(f"expected a prefix of names of journals: {error}") from None
    return value


def reference(value: str) -> str:
    """Return the reference of an object in a module."""
    value = value.strip()
    if not _REFERENCE.fullmatch(value):
        raise ValueError("expected module:name, such as package.module:Name")
    return value


def uuid(value: str) -> str:
    """Return the place of UUIDs: names separated by dots, the index of a column, or a field."""
    expected = "expected a path such as /_meta/uuid, the index of a column, or the name of a field"
    value = value.strip()
    if value.isdecimal() and not value.isascii():
        raise ValueError(expected)
    path = value.removeprefix("/").split("/")
    if not all(path) or (len(path) > 1 and not value.startswith("/")):
        raise ValueError(expected)
    if value.startswith("/"):
        if any(set(name) & set('.~"\\') for name in path):
            raise ValueError(f"{expected}; names can't have any of . ~ \" \\")
        return ".".join(path)
    if not all(value.split(".")) or re.search(r"\s", value):
        raise ValueError(expected)
    return value


def member(value: str) -> str:
    """Return the place of a member: names separated by dots, or the index of a column."""
    value = value.strip()
    if not all(value.split(".")):
        raise ValueError("expected the name of a member, such as item or customer.id")
    return value


def offsets(value: str) -> Positions:
    """Return the offsets at which reads begin or end."""
    expected = (
        'expected earliest, latest or JSON such as {"a/journal": 1234},'
        " where -2 is the earliest and -1 the latest offset"
    )
    match value.strip().lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case _:
            pass
    pairs = _pairs(value, expected)
    for name, offset in pairs.items():
        try:
            journal(name)
        except ValueError as error:
            raise ValueError(f"{expected}: {name!r}: {error}") from None
        if type(offset) is not int or not EARLIEST <= offset <= _MAX_INT64:
            raise ValueError(f"{expected}: offset {offset!r:.30} of {name!r}")
    return pairs


def json_object(value: str) -> str:
    """Return the text of a JSON object."""
    _pairs(value, 'expected a JSON object such as {"kind": "ack"}')
    return value.strip()


def _pairs(value: str, expected: str) -> dict[str, Any]:
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} isn't JSON")

    found: Any = None
    try:
        found = json.loads(value, object_pairs_hook=distinct, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{expected}: {error}") from None
    match found:
        case dict():
            return found  # pyright: ignore[reportUnknownVariableType]
        case _:
            raise ValueError(expected)


def corrupt_column(value: str) -> str:
    """Return the name of the column with the texts of bad records."""
    if text(value).lower() in RESERVED:
        raise ValueError(f"expected another name than {', '.join(RESERVED)}")
    return value


def partition_columns(value: str) -> tuple[PartitionColumn, ...]:
    """Return columns of labels."""
    expected = (
        "expected columns of labels, separated by commas, such as"
        " region=app.gazette.dev/region, part, tags ARRAY<STRING>=app.gazette.dev/tag"
    )
    columns: list[PartitionColumn] = []
    for item in value.split(","):
        if not (match := _PARTITION.fullmatch(item.strip())):
            raise ValueError(f"{expected}, and not {item.strip()!r}")
        name = match["name"]
        label = match["label"] or name
        is_array = (match["type"] or "").lower().startswith("array")
        if name.lower() in RESERVED:
            raise ValueError(f"column {name!r} is reserved")
        if name.lower() in [column.name.lower() for column in columns]:
            raise ValueError(f"column {name!r} occurs twice")
        try:
            validate_label(pb.Label(name=label, value="value"))
        except pb.ValidationError as error:
            raise ValueError(f"{expected}: label {label!r}: {error}") from None
        columns.append(PartitionColumn(name, label, is_array))
    return tuple(columns)
