"""The programs of the guide run as they are."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("httpx", reason="what the pages of the guides need isn't there")
from tests.docs.test_blocks import (
    ROOT,
    SPARK_PAGE,
    apply,
    blocks_of,
    check_page,
    endpoint,
    run_program,
    surroundings,
)
from tests.pyspark.versions import STREAMS

__all__ = ["endpoint", "surroundings"]

GETTING_STARTED = ROOT / "docs" / "getting-started.md"


@STREAMS
def test_blocks_of_the_guide(spark, endpoint, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("BROKER_ADDRESS", endpoint)
    for block in blocks_of(GETTING_STARTED):
        if block.language == "yaml":
            asyncio.run(apply(block))
        elif 'IntentLog("publish.intents")' in block.text:
            run_program(block)
    check_page(SPARK_PAGE, endpoint, monkeypatch, tmp_path)
    printed = capsys.readouterr().out
    assert "published 300\n" in printed
    assert "|coffee|  100|" in printed
    assert "|region|" in printed
