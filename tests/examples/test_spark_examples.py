"""What the examples of Spark do without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from examples.flights.data import DataSetMissingError, archive_path
from examples.spark_flights import report
from examples.spark_flights.__main__ import Outcome, show
from examples.spark_flights.data import Delay
from examples.spark_word_count.__main__ import Counts
from examples.spark_word_count.data import Verse, count, n_grams

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("examples.spark_flights", 0),  # What's before it in the demo has been done.
        ("examples.spark_word_count", 1),
        ("examples.spark_compaction", 1),
    ],
)
def test_where_there_is_no_spark(module, code, tmp_path):
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "PySpark isn't installed" in line or "Java isn't found" in line


def test_differences_of_delays_are_found():
    window = ("2013-01-01", "EWR", "rain")
    expected = {window: report.Figures(3, 2, 17)}
    tally = report.Tally()
    assert report.differences(expected, tally) == [
        "1 windows aren't those of the files: 2013-01-01 EWR rain",
        "2013-01-01 EWR rain: read None, but the files have Figures(flights=3, departed=2, delay_sum=17)",
    ]
    tally.add(Delay(*window, flights=2, departed=1, delay_sum=7))
    tally.add(Delay(*window, flights=3, departed=2, delay_sum=17))
    assert report.differences(expected, tally) == []
    assert tally.by_weather()["rain"].mean == 8.5
    tally.add(Delay(*window, flights=3, departed=2, delay_sum=17))
    assert report.differences(expected, tally) == ["1 messages are repeated: 2013-01-01 EWR rain"]


def test_what_is_printed(tmp_path, capsys):
    window = ("2013-01-01", "EWR", "rain")
    tally = report.Tally()
    tally.add(Delay(*window, flights=1003, departed=2, delay_sum=17))
    outcome = Outcome(1003, 0.5, 1.5, failed_in_batch=1, tally=tally)
    options = Namespace(json=False, chart=tmp_path / "c.png")

    assert show(options, outcome, {window: report.Figures(1003, 2, 17)}) == []
    out = capsys.readouterr().out
    assert re.search(r"^rain +1,003 +2 +8\.5$", out, re.MULTILINE)
    assert "all 1 windows are the same as in the CSV files" in out
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")

    assert show(options, outcome, {}) != []
    assert "the same as" not in capsys.readouterr().out


def test_figures_of_delays():
    try:
        archive_path()
    except DataSetMissingError as error:
        pytest.skip(str(error))

    figures = report.figures_of_csv(1000)

    assert sum(figures.values(), report.Figures()).flights == 1000
    assert {weather for _, _, weather in figures} <= set(report.KINDS)
    assert min(day for day, _, _ in figures) == "2013-01-01"


def test_differences_of_counts_are_found():
    counts, expected = Counts(), Counter({"a b": 2, "b a": 1})
    counts.add("a b", 1)
    assert counts.differences(expected) == [
        "'a b': read 1, but there are 2",
        "'b a': read None, but there are 1",
    ]
    counts.add("a b", 2)
    counts.add("b a", 1)
    assert counts.differences(expected) == []
    counts.add("a b", 2)
    assert counts.differences(expected) == ["'a b' is there twice"]


def test_n_grams():
    text = "God's light: and THERE was light."
    assert n_grams(text, 1) == ["god's", "light", "and", "there", "was", "light"]
    assert n_grams(text, 5) == ["god's light and there was", "light and there was light"]
    assert n_grams(text, 7) == []
    verse = Verse("Genesis 1:3", text, "Genesis", 1, 3)
    assert count([verse], 1)["light"] == 2
