"""How far queries are behind, from what Spark tells."""

from __future__ import annotations

import json

import pytest

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.spark.streaming.lag import lag
from gazette_aio.spark.streaming.offsets import Offsets


def source(end, latest):
    return {
        "description": "a source",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
    }


def offsets(**journals):
    return Offsets(journals).to_text()


def test_bytes_behind_by_journal():
    progress = {"sources": [source(offsets(b=5, a=10), offsets(a=110, b=5, c=7))]}
    assert lag(progress) == {"a": 100, "b": 0, "c": 7}
    assert list(lag(progress)) == ["a", "b", "c"]
    assert lag(json.dumps(progress)) == {"a": 100, "b": 0, "c": 7}


def test_offsets_which_spark_tells_as_objects():
    end, latest = json.loads(offsets(a=10)), json.loads(offsets(a=110))
    assert lag(json.dumps({"sources": [source(end, latest)]})) == {"a": 100}


def test_of_two_sources_the_one_which_is_behind_most():
    one, other = source(offsets(a=10), offsets(a=50)), source(offsets(a=30), offsets(a=60))
    assert lag({"sources": [one, other]}) == lag({"sources": [other, one]}) == {"a": 40}


def test_a_journal_created_anew_is_read_from_its_start():
    end, latest = Offsets({"a": 100}, {"a": 3}), Offsets({"a": 120}, {"a": 8})
    assert lag({"sources": [source(end.to_text(), latest.to_text())]}) == {"a": 120}
    assert lag({"sources": [source(offsets(a=100), offsets(a=20))]}) == {"a": 20}


def test_a_journal_which_is_gone_isnt_behind():
    assert lag({"sources": [source(offsets(a=100, b=1), offsets(b=2))]}) == {"b": 1}


@pytest.mark.parametrize(
    "progress",
    [
        None,
        {},
        {"sources": []},
        {"sources": [source(offsets(a=1), None)]},
        {"sources": [source(None, offsets(a=1))]},
        {"sources": [source('{"topic":{"0":1}}', '{"topic":{"0":9}}')]},
        {"sources": [source("5", "7")]},
        {"sources": [source("a file", "another")]},
        {"sources": [{}]},
    ],
)
def test_nothing_known(progress):
    assert lag(progress) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", "7"])
def test_what_isnt_progress(text):
    with pytest.raises(ValidationError, match=r"^not the progress of a query"):
        lag(text)


def test_offsets_of_a_later_version():
    later = json.dumps({"v": 99, "j": {"a": 1}})
    with pytest.raises(ValidationError, match="version 99"):
        lag({"sources": [source(later, later)]})
