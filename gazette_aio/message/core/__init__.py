"""Core of messages: from chunks of a journal to committed messages, and from messages to frames.

Imports `uuid`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_aio.message.core._native import (
        Batch,
        Journal,
        Schema,
        Stamper,
        Table,
        count_objects,
    )
else:
    _form = import_module("gazette_aio.message.core._native")
    Batch, Journal, Schema = _form.Batch, _form.Journal, _form.Schema
    Stamper, Table, count_objects = _form.Stamper, _form.Table, _form.count_objects

__all__ = ["Batch", "Journal", "Schema", "Stamper", "Table", "count_objects"]
