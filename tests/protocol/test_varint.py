from __future__ import annotations

import pytest
from google.protobuf.internal import decoder, encoder  # type: ignore[attr-defined]
from hypothesis import example, given
from hypothesis import strategies as st

from gazette_aio.protocol import ValidationError
from gazette_aio.protocol.varint import decode_varint, encode_varint


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=3), st.binary(max_size=3))
@example(0, b"", b"")
@example(127, b"", b"\xff")
@example(128, b"\x80", b"")
@example((1 << 64) - 1, b"", b"\xff")
def test_it_is_that_of_protobuf(value: int, before: bytes, after: bytes) -> None:
    # Private: protobuf has no public encoding of a bare varint.
    encoded = encode_varint(value)
    assert encoded == encoder._VarintBytes(value)  # type: ignore[no-untyped-call]
    data = before + encoded + after
    there = decoder._DecodeVarint(data, len(before))  # type: ignore[no-untyped-call]
    assert decode_varint(data, len(before)) == there == (value, len(before) + len(encoded))
    assert decode_varint(memoryview(data), len(before)) == there


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10, b"\x80" * 20 + b"\1"])
def test_numbers_without_an_end(data: bytes) -> None:
    with pytest.raises(ValidationError, match="varint is truncated"):
        decode_varint(data, 0)


def test_the_longest_one() -> None:
    assert decode_varint(b"\xff\x7f", 0, 2) == ((1 << 14) - 1, 2)
    with pytest.raises(ValidationError):
        decode_varint(b"\xff\xff\x01", 0, 2)
