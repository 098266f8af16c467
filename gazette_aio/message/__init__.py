"""Messages of journals: their identity, framing and mapping, publishing, and reading in order.

- Write: `Publisher`, with an adapter of your message type and a mapping to journals.
- Read: `ReadCommittedIter`, which delivers each committed message once, or `ReadUncommittedIter`.
- Below them: UUIDs and clocks, framings, and the `Sequencer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use
from gazette_aio.message.adapters.base import (
    Adapter as Adapter,
    AdapterBySpec as AdapterBySpec,
    FrameUUIDAdapter as FrameUUIDAdapter,
    PlacedAdapter as PlacedAdapter,
    TypedAdapter as TypedAdapter,
    UUIDPlace as UUIDPlace,
)
from gazette_aio.message.adapters.json import JSONAdapter as JSONAdapter
from gazette_aio.message.adapters.json_types import json_adapter as json_adapter
from gazette_aio.message.adapters.raw import (
    RawAdapter as RawAdapter,
    raw_adapter as raw_adapter,
)
from gazette_aio.message.core.rules import QueueOutcome as QueueOutcome
from gazette_aio.message.envelopes.envelope import Envelope as Envelope
from gazette_aio.message.framing import (
    FIXED_FRAME_HEADER_LENGTH as FIXED_FRAME_HEADER_LENGTH,
    FIXED_FRAME_WORD as FIXED_FRAME_WORD,
    CSVFraming as CSVFraming,
    Decoder as Decoder,
    FixedFraming as FixedFraming,
    Frame as Frame,
    Frames as Frames,
    Framing as Framing,
    NDJSONFraming as NDJSONFraming,
    encode_fixed_frame as encode_fixed_frame,
    framing_by_content_type as framing_by_content_type,
    register_framing as register_framing,
    unpack_fixed_frame as unpack_fixed_frame,
    unpack_line as unpack_line,
)
from gazette_aio.message.mapping import (
    Mapping as Mapping,
    PartitionsFunc as PartitionsFunc,
    fnv1a32 as fnv1a32,
    modulo_mapping as modulo_mapping,
    random_mapping as random_mapping,
    rendezvous_mapping as rendezvous_mapping,
)
from gazette_aio.message.publishing.fence import Fence as Fence
from gazette_aio.message.publishing.intent_record import (
    AckIntent as AckIntent,
    IntentRecord as IntentRecord,
)
from gazette_aio.message.publishing.intents import IntentLog as IntentLog
from gazette_aio.message.publishing.publisher import Publisher as Publisher
from gazette_aio.message.publishing.transaction import (
    Transaction as Transaction,
    TransactionLog as TransactionLog,
)
from gazette_aio.message.reading.iterators import (
    EnvelopeBatch as EnvelopeBatch,
    ReadCommittedIter as ReadCommittedIter,
    ReadUncommittedIter as ReadUncommittedIter,
)
from gazette_aio.message.reading.options import ReadOptions as ReadOptions
from gazette_aio.message.sequencing.checkpoint import (
    ProducerState as ProducerState,
    SequencerCheckpoint as SequencerCheckpoint,
)
from gazette_aio.message.sequencing.sequencer import (
    ReplayRange as ReplayRange,
    Sequencer as Sequencer,
)
from gazette_aio.message.uuid import (
    ACK_TXN as ACK_TXN,
    CONTINUE_TXN as CONTINUE_TXN,
    OUTSIDE_TXN as OUTSIDE_TXN,
    ZERO_UUID as ZERO_UUID,
    Clock as Clock,
    Flags as Flags,
    ProducerID as ProducerID,
    build_uuid as build_uuid,
    get_clock as get_clock,
    get_flags as get_flags,
    get_producer_id as get_producer_id,
    new_producer_id as new_producer_id,
    parse_uuid as parse_uuid,
)

# Imported at first use: most programs have JSON.
if TYPE_CHECKING:
    from gazette_aio.message.adapters.csv import (
        CSVAdapter as CSVAdapter,
        TypedCSVAdapter as TypedCSVAdapter,
        csv_adapter as csv_adapter,
    )
    from gazette_aio.message.adapters.protobuf import (
        ProtobufAdapter as ProtobufAdapter,
        protobuf_adapter as protobuf_adapter,
    )


if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals())
