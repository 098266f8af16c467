"""Attacks with random input, in their short form. For longer ones there is `make attack`."""

from __future__ import annotations

import pytest

from benchmarks.attack import PARTS
from tests import etcd, extent

SECONDS = extent.of(1.0, 30.0)


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("durability", "faults")])
async def test_invariants_hold_under_attack(part: str) -> None:
    if part == "group keys":
        etcd.binary()
    await PARTS[part](SECONDS, extent.seed())
