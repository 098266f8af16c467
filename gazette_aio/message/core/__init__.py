"""Core of messages: from chunks of a journal to committed messages, and from messages to frames.

It has two forms with the same results. The compiled one is used where it's there, and the one in
plain Python otherwise. GAZETTE_AIO_CORE names the form to use: `native` or `plain`.

Imports `uuid` and `protocol`.

What isn't for certain a UUID at its usual place is *odd*: it goes to the adapter, in runs. So the
forms can't differ in errors, and adapters of users work. The rule is applied twice to each message:
when it's read, and when what it commits was delivered. The second states are the checkpoint's.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.core._native import (
        Batch,
        Journal,
        Schema,
        Stamper,
        count_objects,
        table_lines,
    )
    from gazette_aio.message.core._native import Column as Column
    from gazette_aio.message.core._native import Field as Field
    from gazette_aio.message.core._native import Part as Part

__all__ = ["FORM", "Batch", "Journal", "Schema", "Stamper", "count_objects", "table_lines"]


def _import_form() -> tuple[Literal["native", "plain"], Any]:
    """Return the form to use, and its module."""
    wanted = os.environ.get("GAZETTE_AIO_CORE", "")
    if wanted not in {"", "native", "plain"}:
        raise ConfigurationError(f"GAZETTE_AIO_CORE is {wanted!r} (expected native or plain)")
    if wanted != "plain":
        try:
            return "native", import_module("gazette_aio.message.core._native")
        except ImportError as error:
            if wanted or not isinstance(error, ModuleNotFoundError):
                raise ImportError(
                    f"the compiled core of messages can't be loaded ({error}): install a wheel of "
                    "this system, build it, or set GAZETTE_AIO_CORE=plain"
                ) from error
    return "plain", import_module("gazette_aio.message.core.plain")


FORM, _module = _import_form()
if not TYPE_CHECKING:
    Batch, Journal, Schema = _module.Batch, _module.Journal, _module.Schema
    Stamper, count_objects = _module.Stamper, _module.count_objects
    table_lines = _module.table_lines
