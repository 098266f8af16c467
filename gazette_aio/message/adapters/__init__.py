"""Adapters, which encode, stamp and decode messages: JSON, protobuf, CSV and raw bytes.

Imports `message.framing` and `message.uuid`, and `protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use
from gazette_aio.message.adapters.base import (
    Adapter,
    AdapterBySpec,
    FrameUUIDAdapter,
    PlacedAdapter,
    SplitMessages,
    SplittingAdapter,
    StampingAdapter,
    TypedAdapter,
    UUIDPlace,
)
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.adapters.json_types import json_adapter
from gazette_aio.message.adapters.raw import RawAdapter, raw_adapter

if TYPE_CHECKING:
    from gazette_aio.message.adapters.csv import CSVAdapter, csv_adapter
    from gazette_aio.message.adapters.protobuf import ProtobufAdapter, protobuf_adapter
    from gazette_aio.message.adapters.typed_csv import TypedCSVAdapter

__all__ = [
    "Adapter",
    "AdapterBySpec",
    "CSVAdapter",
    "FrameUUIDAdapter",
    "JSONAdapter",
    "PlacedAdapter",
    "ProtobufAdapter",
    "RawAdapter",
    "SplitMessages",
    "SplittingAdapter",
    "StampingAdapter",
    "TypedAdapter",
    "TypedCSVAdapter",
    "UUIDPlace",
    "csv_adapter",
    "json_adapter",
    "protobuf_adapter",
    "raw_adapter",
]

# Imported at first use: most programs have JSON.
_MODULES = {
    "CSVAdapter": "gazette_aio.message.adapters.csv",
    "ProtobufAdapter": "gazette_aio.message.adapters.protobuf",
    "TypedCSVAdapter": "gazette_aio.message.adapters.typed_csv",
    "csv_adapter": "gazette_aio.message.adapters.csv",
    "protobuf_adapter": "gazette_aio.message.adapters.protobuf",
}


if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals(), _MODULES)
