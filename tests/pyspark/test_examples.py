"""The pipelines of the examples, each in small, on a broker of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from argparse import Namespace

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from examples import spark_compaction
from examples.flights.data import DataSetMissingError, archive_path
from examples.spark_flights import __main__ as spark_flights
from examples.spark_flights import data as flights_data
from examples.spark_flights import report
from examples.spark_word_count import __main__ as word_count
from examples.spark_word_count import data as verses_data
from tests.pyspark.versions import BATCHES, STREAMS

try:
    archive_path()
    verses_data.verses(1)
except (DataSetMissingError, verses_data.TextMissingError) as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.slow
@BATCHES
def test_delays_by_weather(spark, tmp_path, capsys):
    options = spark_flights.parse_arguments(
        ["--rows=6000", "--json", f"--dir={tmp_path / 'd'}", f"--chart={tmp_path / 'c.png'}"]
    )

    assert spark_flights.demonstrate(options, lambda: spark) == 0

    out, err = capsys.readouterr()
    result = json.loads(out)
    expected = report.figures_of_csv(6000)
    assert result["differences"] == []
    assert result["windows"] == len(expected)
    assert result["messages"] >= len(expected)
    assert result["weather"] == {
        kind: dataclasses.asdict(
            sum((figures for key, figures in expected.items() if key[2] == kind), report.Figures())
        )
        for kind in report.KINDS
    }
    assert sum(figures["flights"] for figures in result["weather"].values()) == 6000
    assert "published: 6,000 of 6,000" in err
    assert "batch 1 was published, and failed before Spark noted that: started again" in err
    assert "aggregated: 6,000 of 6,000" in err
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@BATCHES
def test_n_grams_are_counted_as_protobuf_messages(spark, capsys):
    assert word_count.demonstrate(Namespace(rows=300, size=2, top=1), spark) == 0

    out, err = capsys.readouterr()
    ((n_gram, number),) = verses_data.count(verses_data.verses(300), 2).most_common(1)
    assert out.startswith(f"{number:8} {n_gram}\n")
    assert "counts are right" in out
    assert err.count("counted 150 verses") == 2


@pytest.mark.slow
@STREAMS
def test_journals_are_compacted(spark, tmp_path):
    flights = flights_data.departures(2000)

    output = asyncio.run(spark_compaction.run(flights, spark, tmp_path))

    assert {path.name for path in output.glob("airport=*")} == {
        "airport=EWR", "airport=JFK", "airport=LGA"
    }  # fmt: skip
    assert spark_compaction.differences(spark, output, flights) == []
    lost = spark_compaction.differences(spark, output, flights[1:])
    assert lost == ["2,000 rows were written, but there are 1,999"]
    flights[0].dep_time = 2401
    (changed,) = spark_compaction.differences(spark, output, flights)
    assert changed.startswith(f"row {flights[0].row} of the file isn't that of journal nyc/")
