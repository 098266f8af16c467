"""The programs of the guide run as they are."""

from __future__ import annotations

import pytest

pytest.importorskip("httpx", reason="what the pages of the guides need isn't there")
from tests.docs.test_blocks import SPARK_PAGE, check_page, endpoint, surroundings

__all__ = ["endpoint", "surroundings"]


def test_blocks_of_the_guide(spark, endpoint, monkeypatch, tmp_path, capsys):
    check_page(SPARK_PAGE, endpoint, monkeypatch, tmp_path)
    assert "|region|" in capsys.readouterr().out
