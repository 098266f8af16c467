"""Tables, which are whole when they're piped, and as wide as the terminal at most."""

from __future__ import annotations

import asyncio
import os
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.output import table
from gazette_aio.testing import journal_spec
from gazette_aio.testing.stub_broker import StubBroker
from tests import extent
from tests.cli.conftest import drawn_on, spawn

NAME = "shop/orders/events/part-00"


def test_tables_align_their_columns() -> None:
    assert table(["A", "B"], [("x", 1), ("long", 23)]) == "A      B\nx      1\nlong  23"
    assert table(["A"], []) == "A"
    assert table(["A", "B"], [("日本", "x"), ("e\u0301", "y")]) == "A     B\n日本  x\ne\u0301     y"


def cells_of(line: str) -> int:
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in line)
    return len(line) - sum(unicodedata.combining(each) > 0 for each in line) + wide


@extent.examples(30)
@given(
    st.lists(st.tuples(st.text(), st.integers(), st.text(), st.text("a日")), max_size=5),
    st.integers(1, 120),
)
def test_a_table_of_a_width(rows: list[tuple[Any, ...]], width: int) -> None:
    whole, fitted = (table(["NAME", "COUNT", "SOME TEXT", "D"], rows, w) for w in (None, width))

    lines = fitted.split("\n")
    assert len(lines) == len(rows) + 1
    assert max(map(cells_of, lines)) <= width
    if max(map(cells_of, whole.split("\n"))) <= width:
        assert fitted == whole
    if width >= 8:
        assert lines[0].startswith("NAME"), "the first column is never left out"
    if width >= 30:
        kept = table(["NAME", "COUNT", "SOME TEXT", "D"], rows, width, keep="D")
        assert kept.split("\n")[0].endswith("  D")


async def drawn(columns: int, endpoint: str) -> list[str]:
    """Return the lines of a listing on a terminal."""
    terminal, end = os.openpty()
    env = {"COLUMNS": str(columns), "BROKER_ADDRESS": endpoint}
    process = await spawn("journals", "list", stdout=end, env=env)
    os.close(end)
    _, err = await process.communicate()
    text = (await asyncio.to_thread(drawn_on, terminal)).decode()
    assert (process.returncode, err) == (0, b"")
    assert text.startswith("\x1b[1mNAME"), "the header is bold"
    return re.sub(r"\x1b\[\d*m", "", text).splitlines()


@pytest.mark.parametrize(
    ("columns", "header", "row"),
    [
        (
            120,
            "NAME CONTENT TYPE REVISION RF PRIMARY STORES",
            f"{NAME} application/x-ndjson 5 1 local/broker-ee24ab91 file:///",
        ),
        (
            80,
            "NAME CONTENT TYPE REVISION RF PRIMARY STORES",
            f"{NAME} applic…ndjson 5 1 local/…24ab91 file:///",
        ),
        (60, "NAME CONTENT TYPE REVISION RF", f"{NAME} applicati…x-ndjson 5 1"),
        (20, "NAME", "shop/order…s/part-00"),
    ],
)
async def test_a_row_is_one_line_of_a_terminal(columns: int, header: str, row: str) -> None:
    assert await listed(columns, NAME, "broker-ee24ab91") == [header, row]


async def test_common_journals_fit_into_a_common_terminal() -> None:
    row = "events/part-00 application/x-ndjson 5 1 local/ee24ab91 file:///"
    assert (await listed(80, "events/part-00", "ee24ab91"))[1] == row


async def listed(columns: int, name: str, suffix: str) -> list[str]:
    """Return the words of a listing of a journal on a terminal."""
    async with StubBroker(suffix=suffix) as broker:
        spec = journal_spec(
            name, stores=["file:///"], labels={"content-type": "application/x-ndjson"}
        )
        member = pb.ProcessSpec.ID(zone="local", suffix=suffix)
        route = pb.Route(members=[member], primary=0)
        journal = pb.ListResponse.Journal(spec=spec, mod_revision=5, route=route)
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[journal])
        lines = await drawn(columns, broker.endpoint)

    assert all(len(line) <= columns for line in lines)
    return [" ".join(line.split()) for line in lines]
