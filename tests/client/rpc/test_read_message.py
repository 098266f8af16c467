"""Decoding content by hand comes to the same as protobuf does."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.client.rpc.read_message import ReadContent, ReadMessage, decode_read_message
from tests.client.support import fragment, header

OFFSETS = st.integers(0, (1 << 63) - 1)


def as_message(decoded: ReadMessage) -> pb.ReadResponse:
    return decoded.message() if isinstance(decoded, ReadContent) else decoded


@given(offset=OFFSETS, size=st.integers(0, 300))
@example(offset=0, size=127)
@example(offset=127, size=128)
@example(offset=(1 << 63) - 1, size=1 << 17)
@example(offset=1 << 21, size=1 << 21)
def test_content(offset: int, size: int) -> None:
    message = pb.ReadResponse(offset=offset, content=b"x" * size)
    decoded = decode_read_message(message.SerializeToString())
    assert isinstance(decoded, ReadContent) == (size > 0)
    assert as_message(decoded) == message


@given(
    message=st.builds(
        pb.ReadResponse,
        status=st.sampled_from([pb.Status.OK, pb.Status.SUSPENDED]),
        header=st.sampled_from([None, header()]),
        offset=st.integers(-(1 << 63), (1 << 63) - 1),
        write_head=st.sampled_from([0, 1024]),
        fragment=st.sampled_from([None, fragment()]),
        fragment_url=st.sampled_from(["", "file:///name"]),
        content=st.binary(max_size=20),
    )
)
def test_any_fields(message: pb.ReadResponse) -> None:
    assert as_message(decode_read_message(message.SerializeToString())) == message


@given(
    data=st.one_of(
        st.binary(max_size=40),
        # What looks like content, cut, followed by more, or with numbers of any form.
        st.builds(
            b"".join,
            st.lists(
                st.sampled_from([b"\x18", b"\x3a", b"\x80", b"\xff", b"\x01", b"\x03", b"abc"]),
                max_size=12,
            ),
        ),
    )
)
@example(b"\x18" + b"\xff" * 9 + b"\x01\x3a\x01x")  # An offset of -1.
@example(b"\x18\x80\x00\x3a\x81\x00x")  # Numbers which are longer than they need be.
@example(b"\x3a\x03abc\x3a\x01x")  # The last one counts.
@example(b"\x3a\x04abc")
@example(b"\x18")
@example(b"")
def test_any_bytes(data: bytes) -> None:
    try:
        expected = pb.ReadResponse.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_read_message(data)
    else:
        assert as_message(decode_read_message(data)) == expected
