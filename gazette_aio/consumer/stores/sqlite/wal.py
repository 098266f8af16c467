"""Write-ahead logs of SQLite, as far as it takes to find what is committed.

The format is that of https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from gazette_aio.protocol.errors import StoreError

HEADER_BYTES: Final = 32
"""Length of the header of a log."""
FRAME_HEADER_BYTES: Final = 24
"""Length of the header of a frame, which a page follows."""

_MAGICS: Final = (0x377F0682, 0x377F0683)
_MIN_PAGE_BYTES: Final = 512
_MAX_PAGE_BYTES: Final = 65536
_header: Final = struct.Struct(">IIII8sII")
_frame: Final = struct.Struct(">II8s")


class WalHeader(NamedTuple):
    """Header of a log."""

    page_bytes: int
    salts: bytes
    """Each frame repeats them. Frames of other salts are of a former use of the file."""

    @property
    def frame_bytes(self) -> int:
        """Length of a frame and its page."""
        return FRAME_HEADER_BYTES + self.page_bytes


class Frames(NamedTuple):
    """Frames of a part of a log."""

    length: int
    """Length up to the end of the last frame that's looked at."""
    committed: int
    """Length up to the end of the last transaction that ends there; zero if none does."""
    pages: frozenset[int]
    """Numbers of the pages up to there, from one."""
    following: frozenset[int]
    """Numbers of the pages after it, whose transaction isn't known to be committed."""
    is_end: bool
    """Whether what follows isn't of this log."""


def parse_header(data: bytes) -> WalHeader:
    """Return the header that a log begins with.

    Raises:
        StoreError: It isn't that of a write-ahead log.
    """
    if len(data) < HEADER_BYTES:
        raise StoreError("the write-ahead log has no header")
    magic, _, page_bytes, _, salts, _, _ = _header.unpack_from(data)
    is_power = page_bytes & (page_bytes - 1) == 0
    if magic not in _MAGICS or not (_MIN_PAGE_BYTES <= page_bytes <= _MAX_PAGE_BYTES and is_power):
        raise StoreError("the write-ahead log has an invalid header")
    return WalHeader(page_bytes, salts)


def find_frames(data: bytes, header: WalHeader) -> Frames:
    """Find the transactions that end within a part of a log.

    A frame that has the salts of the log counts: checksums aren't looked at, as SQLite itself has
    just written the frames, or takes those that are valid.

    Args:
        data: Part of the log, which begins with a frame.
        header: Header of the log.
    """
    frame_bytes, salts = header.frame_bytes, header.salts
    length = committed = 0
    pages: set[int] = set()
    following: set[int] = set()
    is_end = False
    for begin in range(0, len(data) - frame_bytes + 1, frame_bytes):
        page, size, of = _frame.unpack_from(data, begin)
        if of != salts or not page:
            is_end = True
            break
        length = begin + frame_bytes
        following.add(page)
        if size:  # Length of the database in pages: the frame ends a transaction.
            committed = length
            pages |= following
            following.clear()
    return Frames(length, committed, frozenset(pages), frozenset(following), is_end)
