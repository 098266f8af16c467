"""Messages whose documents are decoded: a batch of the core, or an array of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.core import Batch

if TYPE_CHECKING:
    from pyarrow import BinaryArray

    from gazette_aio.message.columns.uuids import Indices
    from gazette_aio.message.core import Part, Schema

    Messages: TypeAlias = Batch | BinaryArray


def payloads_of(messages: Messages, rows: Indices | None = None) -> list[bytes]:
    """Return the payloads of messages: those at `rows`, or all."""
    if not isinstance(messages, Batch):
        array: Any = messages if rows is None else messages.take(pa.array(rows))
        payloads: list[bytes] = array.to_pylist()
        return payloads
    if rows is None:
        return messages.payloads(0, len(messages))
    return [messages.payloads(row, row + 1)[0] for row in rows.tolist()]


def parse(messages: Messages, schema: Schema, threads: int) -> list[Part]:
    """Parse messages as documents, as `Batch.documents()` does.

    Raises:
        OverflowError: The messages are larger than 2 GiB.
    """
    if isinstance(messages, Batch):
        return messages.documents(schema, threads)
    array: Any = messages
    _, bounds, data = array.buffers()
    offsets: Any = np.frombuffer(bounds, np.int32)[array.offset : array.offset + len(array) + 1]
    text: Any = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return schema.read(offsets - offsets[0], text, threads)
