"""Regions: runs of frames whose places within one buffer are columns.

Splitters into regions are the counterparts of the decoders of framings, and split alike, whatever
the chunks are: the same frames, and the same errors between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.columnar.regions.base import MAX_ROWS, Region, RegionSplitter
from gazette_aio.message.columnar.regions.decoded import DecoderSplitter
from gazette_aio.message.columnar.regions.fixed import FixedSplitter
from gazette_aio.message.columnar.regions.lines import LineSplitter
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES, FixedFraming, NDJSONFraming

if TYPE_CHECKING:
    from gazette_aio.message.framing import Framing

__all__ = ["MAX_ROWS", "Region", "RegionSplitter", "region_splitter"]


def region_splitter(
    framing: Framing, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
) -> RegionSplitter:
    """Return a splitter of content of `framing` which begins at `offset`."""
    if type(framing) is NDJSONFraming:
        return LineSplitter(offset, max_frame_bytes)
    if type(framing) is FixedFraming:
        return FixedSplitter(offset, max_frame_bytes)
    return DecoderSplitter(framing.decoder(offset, max_frame_bytes=max_frame_bytes))
