from __future__ import annotations

import pytest

from gazette_aio.aio.turns import Turns
from gazette_aio.message.publishing import encoding
from gazette_aio.message.publishing.encoding import Slices


@pytest.mark.parametrize(
    ("most", "row_seconds", "expected"),
    [
        (None, 1e-6, [16, 64, 256, 1000, 1000]),
        (100, 1e-6, [16, 64, 100, 100]),
        (None, 1e-3, [16, 8, 4, 2, 1, 1]),
        (None, 0.0, [16, 64, 256, 1024, 4096]),
    ],
)
async def test_slices_take_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
    most: int | None,
    row_seconds: float,
    expected: list[int],
) -> None:
    now = 0.0
    monkeypatch.setattr(encoding, "thread_time", lambda: now)
    sizes: list[int] = []
    async for start, stop in Slices(9000, Turns(), most):
        sizes.append(stop - start)
        now += (stop - start) * row_seconds
    assert sum(sizes) == 9000
    assert sizes[: len(expected)] == expected
