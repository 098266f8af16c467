"""Regions: runs of frames as columns of their places within one buffer.

Splitters into regions are the counterparts of decoders. They return the same frames and the same
errors between them, whatever the chunks are. Imports numpy and pyarrow, and so `message.framing`
imports this package only within `Framing.splitter()`.
"""

from __future__ import annotations

from gazette_aio.message.framing.regions.region import MAX_ROWS, Region, RegionSplitter

__all__ = ["MAX_ROWS", "Region", "RegionSplitter"]
