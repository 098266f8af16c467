"""Messages of recovery logs."""

from __future__ import annotations

from gazette_aio.protocol._generated.recoverylog_pb2 import (
    FnodeSegments,
    FSMHints,
    Property,
    RecordedOp,
    Segment,
)

__all__ = [
    "FSMHints",
    "FnodeSegments",
    "Property",
    "RecordedOp",
    "Segment",
]
