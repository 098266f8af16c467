from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.client.reads.position import ReadPosition

offsets = st.integers(-1, 1 << 62)


@given(offset=offsets, end=st.integers(0, 1 << 62), limit=st.integers(-1, 1 << 40))
def test_a_read_never_goes_beyond_its_end(offset: int, end: int, limit: int) -> None:
    position = ReadPosition(offset, end)
    bounded = position.bounded(limit)
    if not end:
        assert bounded == limit
        assert not position.is_at_end
        return
    assert bounded >= 0
    assert limit < 0 or bounded <= limit
    assert (bounded == 0) == (position.is_at_end or limit == 0)
    position.offset = max(offset, 0) + bounded
    assert offset < 0 or position.offset <= max(end, offset)
