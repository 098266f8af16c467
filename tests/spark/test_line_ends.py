"""Ends of the last records of journals, whose appends may be torn."""

from __future__ import annotations

import pytest

from gazette_aio.message.framing import FixedFraming, framing_by_content_type, register_framing
from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange
from gazette_aio.spark.streaming.line_ends import is_complete, last_end
from gazette_aio.testing import create_journals, journal_spec
from tests.message.framing.own_framings import SemicolonFraming
from tests.message.sequencing.sequencing import JOURNAL
from tests.spark.histories import TYPES, options

SEMICOLONS = "text/semicolons"
FIXED = FixedFraming().encode(b"x")


@pytest.fixture(autouse=True)
def _semicolons():
    framing = SemicolonFraming()
    framing.content_type = SEMICOLONS
    register_framing(framing)
    assert framing_by_content_type(SEMICOLONS) is framing


@pytest.mark.parametrize(
    ("content_type", "whole", "torn"),
    [
        (TYPES["ndjson"], b"a\nb\n", b"cc"),
        (TYPES["csv"], b"a,1\n", b'"b'),
        (SEMICOLONS, b"a;b\n;", b"cc\n"),
        (SEMICOLONS, b"a;b\n;", b""),
        (TYPES["protobuf-fixed"], FIXED, b""),
        ("image/png", b"a\nb", b""),
    ],
)
@pytest.mark.parametrize("form", [None, "raw"])
async def test_the_end_of_the_last_record(gazette_client, content_type, whole, torn, form):
    given = {} if form is None else {"format": form}
    await create_journals(gazette_client, journal_spec(JOURNAL))
    await gazette_client.append(JOURNAL, whole + torn)
    journal = JournalInfo(JOURNAL, len(whole + torn), content_type)
    assert await is_complete(gazette_client, journal, options(**given)) is (not torn)
    planned = JournalRange(journal, 0, journal.head)
    assert await last_end(gazette_client, planned, options(**given)) == len(whole)
