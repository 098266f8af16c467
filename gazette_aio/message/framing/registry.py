"""Registry of framings by content type."""

from __future__ import annotations

from gazette_aio.message.framing.base import Framing
from gazette_aio.message.framing.csv import CSVFraming
from gazette_aio.message.framing.fixed import FixedFraming
from gazette_aio.message.framing.ndjson import NDJSONFraming
from gazette_aio.protocol.errors import ConfigurationError, UnrecognizedContentTypeError

_framings: dict[str, Framing] = {}


def register_framing(framing: Framing) -> None:
    """Register `framing` for its content type, in place of an earlier one.

    Framings are meant to be registered at import time.

    Raises:
        ConfigurationError: It isn't an object of a subclass of Framing.
    """
    if not isinstance(framing, Framing):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"expected a Framing, and not {framing!r}")
    _framings[framing.content_type] = framing


def find_framing(content_type: str) -> Framing | None:
    """Return the framing of `content_type`, or None if none is registered."""
    return _framings.get(content_type)


def framing_by_content_type(content_type: str, *, journal: str = "") -> Framing:
    """Return the framing of `content_type`.

    Args:
        content_type: Content type of a journal.
        journal: Name of the journal, for errors.

    Raises:
        UnrecognizedContentTypeError: None is registered.
    """
    framing = find_framing(content_type)
    if framing is None:
        text = f"unrecognized content-type ({content_type})"
        if journal:
            known = (
                "framings are registered of" if content_type else "the label is missing; known are"
            )
            text = f"{text} of journal {journal}: {known} {', '.join(_framings)}"
            text = f"{text}, and register_framing() adds others"
        raise UnrecognizedContentTypeError(text, journal=journal)
    return framing


for _framing in (NDJSONFraming(), FixedFraming(), CSVFraming()):
    register_framing(_framing)
