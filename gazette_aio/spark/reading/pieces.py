"""Content of a journal in pieces, and the size of one step of work on it."""

from __future__ import annotations

from typing import Final, TypeAlias

STEP_BYTES: Final = 4 << 20
"""Bytes of content which a task processes in one step."""

Pieces: TypeAlias = list[tuple[int, bytes]]
"""Offsets and their bytes, in order; pieces aren't empty, and follow each other except at gaps."""
