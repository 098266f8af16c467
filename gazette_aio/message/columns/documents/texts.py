"""Columns of UUIDs, and of their parts, as hexadecimal text."""

from __future__ import annotations

from binascii import hexlify
from typing import TYPE_CHECKING, Any

import numpy as np

from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.uuid import TEXT_LENGTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gazette_aio.message.columns.uuids import UuidColumns

_4, _12, _16, _32, _36 = (np.uint64(bits) for bits in (4, 12, 16, 32, 36))
_48, _52, _58 = (np.uint64(bits) for bits in (48, 52, 58))
_COUNTER, _MIDDLE = np.uint64(0xF), np.uint64(0xFFFF)
_VERSION, _VARIANT = np.uint64(0x1000), np.uint64(1 << 63)
_DASH = b"-"[0]
_DIGITS = 16  # Of a word.
_PRODUCER_DIGITS = 12


def uuid_texts(columns: UuidColumns, validity: Any = None) -> Any:
    """Return UUIDs as texts, such as `60b4c1d2-2b3a-11ee-8400-0123456789ab`.

    They're built of producers, clocks and flags, as UUIDs of version 1.

    Args:
        columns: The UUIDs.
        validity: Bitmap of values that aren't null, if there are nulls.
    """
    clock = columns.clock
    high = (clock >> _4) << _32
    high |= ((clock >> _36) & _MIDDLE) << _16
    high |= (clock >> _52) | _VERSION
    low = (clock & _COUNTER) << _58
    low |= (columns.flags.astype(np.uint64) << _48) | columns.producer | _VARIANT
    words = np.empty((columns.rows, 2), ">u8")
    words[:, 0], words[:, 1] = high, low
    digits = np.frombuffer(hexlify(words.tobytes()), np.uint8).reshape(-1, 2 * _DIGITS)
    texts = np.empty((columns.rows, TEXT_LENGTH), np.uint8)
    begin = 0
    for group, size in enumerate((8, 4, 4, 4, 12)):
        texts[:, begin + group : begin + group + size] = digits[:, begin : begin + size]
        begin += size
    texts[:, 8:24:5] = _DASH
    return _strings(texts, validity)


def clock_texts(clocks: NDArray[np.uint64], validity: Any = None) -> Any:
    """Return clocks as 16 digits each, whose order is that of clocks."""
    return _strings(_digits(clocks), validity)


def producer_texts(producers: NDArray[np.uint64], validity: Any = None) -> Any:
    """Return producer IDs as 12 digits each."""
    return _strings(_digits(producers)[:, _DIGITS - _PRODUCER_DIGITS :], validity)


def _digits(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    raw = hexlify(words.astype(">u8").tobytes())
    return np.frombuffer(raw, np.uint8).reshape(-1, _DIGITS)


def _strings(texts: NDArray[np.uint8], validity: Any) -> Any:
    """Return rows of ASCII characters as texts."""
    rows, size = texts.shape
    offsets = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts))]
    return pa.Array.from_buffers(pa.string(), rows, buffers)
