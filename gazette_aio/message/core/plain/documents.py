"""Columns of JSON documents in plain Python: none, as a reader of single documents reads all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from gazette_aio.message.core import Field, Part


class Schema:
    """Columns of documents. The compiled form refuses those that aren't surely rows; this, all."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = fields

    def read(self, offsets: Buffer, data: Buffer, threads: int) -> list[Part]:
        """Return no rows of an array of documents, and the indices of all."""
        del data, threads
        return self.refuse(memoryview(offsets).nbytes // 4 - 1)

    def refuse(self, count: int) -> list[Part]:
        """Return no rows of so many documents, and the indices of all."""
        return [(0, [], list(range(count)))]
