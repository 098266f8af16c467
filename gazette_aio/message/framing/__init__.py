"""Framings, which delimit the messages within the bytes of a journal.

A module holds a framing and its decoder. Imports `message.core` and `protocol`.

Framings declare their properties (`Framing.splits` and others); no code tests a framing's class. A
subclass that overrides `encode()` or `decoder()` doesn't inherit the declarations, so that no fast
path splits another framing's frames.
"""

from __future__ import annotations

from gazette_aio.message.framing.base import (
    DEFAULT_MAX_FRAME_BYTES as DEFAULT_MAX_FRAME_BYTES,
    Decoder as Decoder,
    Frame as Frame,
    Frames as Frames,
    Framing as Framing,
)
from gazette_aio.message.framing.csv import CSVFraming as CSVFraming
from gazette_aio.message.framing.fixed import (
    FIXED_FRAME_HEADER_LENGTH as FIXED_FRAME_HEADER_LENGTH,
    FIXED_FRAME_WORD as FIXED_FRAME_WORD,
    FixedFraming as FixedFraming,
    encode_fixed_frame as encode_fixed_frame,
    unpack_fixed_frame as unpack_fixed_frame,
)
from gazette_aio.message.framing.ndjson import (
    NDJSONFraming as NDJSONFraming,
    unpack_line as unpack_line,
)
from gazette_aio.message.framing.registry import (
    find_framing as find_framing,
    framing_by_content_type as framing_by_content_type,
    register_framing as register_framing,
)
