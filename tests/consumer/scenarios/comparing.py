"""How what a member does is compared with what was recorded."""

from __future__ import annotations

import re
from typing import Any

from tests.known_differences import SHARD_TEXTS

Json = Any

_ALWAYS_PRESENT = {"min_txn_duration": "0s", "labels": {}, "primary_hints": {}}
"""Empty messages which the reference always writes. Those who read know no difference."""
_UNASSIGNED = {"primary": -1}
_MORE = r"([ :;].*)?$"
"""What own texts may add: the journal, and the remedy."""


def difference(expected: Json, actual: Json, path: str = "$") -> str | None:
    """Return where and how a value differs from what's expected, or None."""
    match expected:
        case "${any}":
            return None
        case str() if (text := _own_text(expected)) is not None:
            return difference(text, actual, path)
        case str() if expected.startswith("~"):
            found = isinstance(actual, str) and re.search(expected[1:], actual)
            return None if found else f"{path}: {actual!r} doesn't match {expected[1:]!r}"
        case {"$any_of": alternatives}:
            differences = [difference(each, actual, path) for each in alternatives]
            return None if None in differences else differences[0]
        case dict():
            return _object_difference(expected, actual, path)
        case list():
            return _list_difference(expected, actual, path)
        case _:
            equal = expected == actual and type(expected) is type(actual)
            return None if equal else f"{path}: {actual!r}, expected {expected!r}"


def _own_text(expected: str) -> str | None:
    """Return the pattern of a failed shard's text here, if a recorded text is one of them."""
    plain = expected.removeprefix("~^")
    is_whole = plain == expected
    plain = plain if is_whole else plain.replace("\\", "")
    for recorded, own in SHARD_TEXTS.items():
        if plain.startswith(recorded):
            return f"~^{own}{re.escape(plain.removeprefix(recorded))}{_MORE * is_whole}"
    return None


def _object_difference(expected: Json, actual: Json, path: str) -> str | None:
    if not isinstance(actual, dict):
        return f"{path}: {actual!r}, expected {expected!r}"
    wanted, given = _without_empty(expected), _without_empty(actual)
    is_partial = wanted.pop("$partial", False)
    is_enabled = "spec" in wanted and not wanted["spec"].get("disable")
    if is_enabled and wanted.get("route") == _UNASSIGNED:
        # A shard which had just been applied is assigned soon.
        for key in ("route", "status"):
            wanted.pop(key, None)
            given.pop(key, None)
    for earlier, later in wanted.pop("before", ()):
        order = given.get("order", [])
        if not _is_before(order, earlier, later):
            return f"{path}: {earlier!r} isn't before {later!r} in {order}"
    given.pop("order", None)
    for key, item in wanted.items():
        if key not in given:
            return f"{path}.{key}: missing in {actual!r}"
        if (found := difference(item, given[key], f"{path}.{key}")) is not None:
            return found
    unexpected = [] if is_partial else [key for key in given if key not in wanted]
    return f"{path}: unexpected {unexpected} in {actual!r}" if unexpected else None


def _without_empty(value: dict[str, Json]) -> dict[str, Json]:
    return {
        key: item
        for key, item in value.items()
        if not (key in _ALWAYS_PRESENT and item == _ALWAYS_PRESENT[key])
    }


def _is_before(order: list[str], earlier: str, later: str) -> bool:
    if earlier not in order or later not in order:
        return False
    return order.index(earlier) < len(order) - 1 - order[::-1].index(later)


def _list_difference(expected: Json, actual: Json, path: str) -> str | None:
    if not isinstance(actual, list):
        return f"{path}: {actual!r}, expected {expected!r}"
    index = 0
    for item in expected:
        if item == "${...}":
            return None
        wanted, is_optional = item, False
        if isinstance(item, dict) and "optional" in item:
            wanted = {key: value for key, value in item.items() if key != "optional"}
            is_optional = True
        found: str | None = f"{path}[{index}]: missing {wanted!r}"
        if index < len(actual):
            found = difference(wanted, actual[index], f"{path}[{index}]")
        if found is None:
            index += 1
        elif not is_optional:
            return found
    return None if index == len(actual) else f"{path}[{index}]: unexpected {actual[index:]!r}"
