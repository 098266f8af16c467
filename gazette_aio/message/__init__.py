"""Messages of journals: their identity, framing and mapping, publishing, and reading in order.

- Write: `Publisher`, with an adapter of your message type and a mapping to journals.
- Read: `ReadCommittedIter`, which delivers each committed message once, or `ReadUncommittedIter`.
- Below them: UUIDs and clocks, framings, and the `Sequencer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use
from gazette_aio.message.adapters.base import (
    Adapter,
    AdapterBySpec,
    FrameUUIDAdapter,
    PlacedAdapter,
    TypedAdapter,
    UUIDPlace,
)
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.adapters.json_types import json_adapter
from gazette_aio.message.adapters.raw import RawAdapter, raw_adapter
from gazette_aio.message.core.rules import QueueOutcome
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.framing import (
    FIXED_FRAME_HEADER_LENGTH,
    FIXED_FRAME_WORD,
    CSVFraming,
    Decoder,
    FixedFraming,
    Frame,
    Frames,
    Framing,
    NDJSONFraming,
    encode_fixed_frame,
    framing_by_content_type,
    register_framing,
    unpack_fixed_frame,
    unpack_line,
)
from gazette_aio.message.mapping import (
    Mapping,
    PartitionsFunc,
    fnv1a32,
    modulo_mapping,
    random_mapping,
    rendezvous_mapping,
)
from gazette_aio.message.publishing.fence import Fence
from gazette_aio.message.publishing.intent_record import AckIntent, IntentRecord
from gazette_aio.message.publishing.intents import IntentLog
from gazette_aio.message.publishing.publisher import Publisher
from gazette_aio.message.publishing.transaction import Transaction, TransactionLog
from gazette_aio.message.reading.iterators import (
    EnvelopeBatch,
    ReadCommittedIter,
    ReadUncommittedIter,
)
from gazette_aio.message.reading.options import ReadOptions
from gazette_aio.message.sequencing.checkpoint import ProducerState, SequencerCheckpoint
from gazette_aio.message.sequencing.sequencer import ReplayRange, Sequencer
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ZERO_UUID,
    Clock,
    Flags,
    ProducerID,
    build_uuid,
    get_clock,
    get_flags,
    get_producer_id,
    new_producer_id,
    parse_uuid,
)

# Imported at first use: most programs have JSON.
if TYPE_CHECKING:
    from gazette_aio.message.adapters.csv import CSVAdapter, TypedCSVAdapter, csv_adapter
    from gazette_aio.message.adapters.protobuf import ProtobufAdapter, protobuf_adapter

__all__ = [
    "ACK_TXN",
    "CONTINUE_TXN",
    "FIXED_FRAME_HEADER_LENGTH",
    "FIXED_FRAME_WORD",
    "OUTSIDE_TXN",
    "ZERO_UUID",
    "AckIntent",
    "Adapter",
    "AdapterBySpec",
    "CSVAdapter",
    "CSVFraming",
    "Clock",
    "Decoder",
    "Envelope",
    "EnvelopeBatch",
    "Fence",
    "FixedFraming",
    "Flags",
    "Frame",
    "FrameUUIDAdapter",
    "Frames",
    "Framing",
    "IntentLog",
    "IntentRecord",
    "JSONAdapter",
    "Mapping",
    "NDJSONFraming",
    "PartitionsFunc",
    "PlacedAdapter",
    "ProducerID",
    "ProducerState",
    "ProtobufAdapter",
    "Publisher",
    "QueueOutcome",
    "RawAdapter",
    "ReadCommittedIter",
    "ReadOptions",
    "ReadUncommittedIter",
    "ReplayRange",
    "Sequencer",
    "SequencerCheckpoint",
    "Transaction",
    "TransactionLog",
    "TypedAdapter",
    "TypedCSVAdapter",
    "UUIDPlace",
    "build_uuid",
    "csv_adapter",
    "encode_fixed_frame",
    "fnv1a32",
    "framing_by_content_type",
    "get_clock",
    "get_flags",
    "get_producer_id",
    "json_adapter",
    "modulo_mapping",
    "new_producer_id",
    "parse_uuid",
    "protobuf_adapter",
    "random_mapping",
    "raw_adapter",
    "register_framing",
    "rendezvous_mapping",
    "unpack_fixed_frame",
    "unpack_line",
]

if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals())
