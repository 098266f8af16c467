"""Messages of recovery logs."""

from __future__ import annotations

from gazette_aio.protocol._generated.recoverylog_pb2 import (
    FnodeSegments as FnodeSegments,
    FSMHints as FSMHints,
    Property as Property,
    RecordedOp as RecordedOp,
    Segment as Segment,
)
