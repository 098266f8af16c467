"""Base class of the readers of a journal."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from gazette_aio.client.fragments.byte_reader import ByteReader

if TYPE_CHECKING:
    import gazette_aio.protocol as pb


class JournalReader(ByteReader):
    """A reader of a journal that knows the offset of each byte."""

    @property
    @abstractmethod
    def request(self) -> pb.ReadRequest:
        """The request, from the next byte on."""

    @property
    @abstractmethod
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the write head is known."""

    @property
    def journal(self) -> str:
        """Name of the journal."""
        return self.request.journal

    def adjusted_offset(self, buffered: int) -> int:
        """Return the offset of the first of `buffered` bytes that were read but not yet used."""
        return self.offset - buffered
