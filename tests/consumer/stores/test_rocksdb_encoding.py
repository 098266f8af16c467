"""Keys and values of checkpoints in RocksDB."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.stores.rocksdb import encoding
from gazette_aio.protocol.errors import StoreError


def test_keys() -> None:
    assert encoding.CHECKPOINT_KEY.hex() == "0012636865636b706f696e740001"
    assert encoding.OFFSETS_PREFIX.hex() == "00126d61726b0001"
    key = encoding.offset_key("a/b\0c\u00ffd")
    assert key == encoding.OFFSETS_PREFIX + bytes.fromhex("12612f6200ff63c3bf640001")
    assert encoding.OFFSETS_PREFIX < key < encoding.OFFSETS_END


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, "88"),
        (1, "89"),
        (109, "f5"),
        (110, "f66e"),
        (255, "f6ff"),
        (256, "f70100"),
        (1234, "f704d2"),
        (65536, "f8010000"),
        (1 << 40, "fb010000000000"),
        (1 << 62, "fd4000000000000000"),
        (-1, "87ff"),
        (-300, "86fed4"),
    ],
)
def test_offsets(offset: int, value: str) -> None:
    assert encoding.encode_offset(offset).hex() == value
    assert encoding.decode_offset(bytes.fromhex(value)) == offset


@given(st.integers(-(1 << 62), (1 << 63) - 1), st.integers(-(1 << 62), (1 << 63) - 1))
def test_values_sort_as_offsets_do(one: int, other: int) -> None:
    first, second = encoding.encode_offset(one), encoding.encode_offset(other)
    assert encoding.decode_offset(first) == one
    assert (first < second) == (one < other)


@given(st.text(max_size=20))
def test_journals(journal: str) -> None:
    assert encoding.journal_of(encoding.offset_key(journal)) == journal


@pytest.mark.parametrize("value", ["", "7f00", "88ff", "f6", "f66e00", "fe010203040506070809"])
def test_values_that_are_no_offsets(value: str) -> None:
    with pytest.raises(StoreError, match="unexpected value"):
        encoding.decode_offset(bytes.fromhex(value))


@pytest.mark.parametrize("key", [b"x", encoding.OFFSETS_PREFIX, encoding.offset_key("a")[:-1]])
def test_keys_that_are_of_no_offset(key: bytes) -> None:
    with pytest.raises(StoreError, match="unexpected key"):
        encoding.journal_of(key)
    with pytest.raises(StoreError, match="unexpected key"):
        encoding.journal_of(encoding.OFFSETS_PREFIX + b"\x12\xff\x00\x01")
