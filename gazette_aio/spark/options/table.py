"""Options as fields of dataclasses, with their parsers, and checks for contradictions."""

from __future__ import annotations

from dataclasses import MISSING, field, fields
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.protocol.suggestion import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Spark's own options: of readers and writers, and of CREATE TABLE.
_IGNORED: Final = frozenset(
    {
        *("path", "paths", "checkpointlocation", "queryname"),
        *("provider", "owner", "location", "comment", "collation", "external"),
        "is_managed_location",
    }
)
_IGNORED_PREFIX: Final = "option."
_REPLACED: Final = {
    "pushdown": "isn't supported: choose journals by 'selector', times by 'startingTimestamp' and"
    " 'endingTimestamp', and bytes by 'startingOffsets' and 'endingOffsets'"
}
"""What's said of options which there aren't, by their lower-case names."""
_MOST_SAID: Final = 80


def option(
    name: str, parse: Callable[[str], Any], *, default: Any = None, is_secret: bool = False
) -> Any:
    """Return the field of a dataclass which an option sets.

    Args:
        name: Name of the option.
        parse: Returns the value of a text, or raises ValueError.
        default: The value if the option isn't given; MISSING if it must be.
        is_secret: Whether the value is left out of texts.
    """
    metadata = {"option": name, "parse": parse}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, repr=not is_secret, metadata=metadata)


def parsers_of(*kinds: type) -> dict[str, Callable[[str], Any]]:
    """Return the parsers of all options which are fields of dataclasses, by names of options."""
    return {
        each.metadata["option"]: each.metadata["parse"]
        for kind in kinds
        for each in fields(kind)
        if each.metadata
    }


def parse_options(
    options: Mapping[str, str], parsers: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """Return the values of options by their canonical names.

    Args:
        options: Texts by names in any case. Spark's own options are ignored.
        parsers: Parsers of all options, by their canonical names.

    Raises:
        ConfigurationError: An option is unknown, malformed, or given twice.
    """
    names = {name.lower(): name for name in parsers}
    given: dict[str, Any] = {}
    for key, text in options.items():
        lower = key.lower()
        if lower in _IGNORED or lower.startswith(_IGNORED_PREFIX):
            continue
        if (instead := _REPLACED.get(lower)) is not None:
            raise ConfigurationError(f"option {key!r} {instead}")
        if (name := names.get(lower)) is None:
            hint = suggestion(lower, parsers) or f": options are {', '.join(parsers)}"
            raise ConfigurationError(f"unknown option {_short(key)!r}{hint}")
        if name in given:
            raise ConfigurationError(f"option {name!r} is given twice, in different spellings")
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"option {name!r}: expected a text")
        try:
            given[name] = parsers[name](text)
        except ValueError as error:
            said = _said(name, text)
            raise ConfigurationError(f"option {name!r}: {said} is invalid: {error}") from None
    return given


def _said(name: str, text: str) -> str:
    # Secret: the URL of a broker may have a password.
    if name == "token" or "@" in text:
        return "its value"
    return repr(_short(text))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SAID else text[:_MOST_SAID] + "…"


def fields_of(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the values of the given options of a dataclass by names of fields."""
    return {
        each.name: given[each.metadata["option"]]
        for each in fields(kind)
        if each.metadata.get("option") in given
    }


def refuse(given: Mapping[str, Any], name: str, reason: str) -> None:
    """Raise ConfigurationError if an option is given."""
    if name in given:
        raise ConfigurationError(f"option {name!r} {reason}")


def refuse_others(given: Mapping[str, Any], known: Iterable[str], kind: str) -> None:
    """Raise ConfigurationError if an option isn't known, because it's for `kind`."""
    for name in given:
        if name not in known:
            raise ConfigurationError(f"option {name!r} is for {kind} only")


def refuse_together(given: Mapping[str, Any], *names: str) -> None:
    """Raise ConfigurationError if more than one of the options is given."""
    found = [repr(name) for name in names if name in given]
    if len(found) > 1:
        raise ConfigurationError(f"options {' and '.join(found)} exclude each other")
