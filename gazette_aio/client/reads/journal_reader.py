"""What readers of a journal have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from gazette_aio.aio.owner import ByteReader

if TYPE_CHECKING:
    import gazette_aio.protocol as pb


class JournalReader(ByteReader):
    """A reader whose request tells where it is."""

    @property
    @abstractmethod
    def request(self) -> pb.ReadRequest:
        """The request; its `offset` is that of the next byte to be read."""

    @property
    def journal(self) -> str:
        """The journal read."""
        return self.request.journal

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the head is known."""
        return self.request.offset

    def adjusted_offset(self, buffered: int) -> int:
        """Return the offset of the first of `buffered` bytes which were read but not yet used."""
        return self.offset - buffered
