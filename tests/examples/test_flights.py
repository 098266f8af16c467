"""The flights demo, on a few thousand rows: with the kill, the restart and the comparison."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from examples.flights import data, report
from examples.flights.__main__ import main
from examples.flights.fleet import Share, shares

ROOT = Path(__file__).parents[2]
ROWS = 6_000

try:
    data.archive_path()
except data.DataSetMissingError as error:
    pytest.skip(str(error), allow_module_level=True)


def demo(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.flights", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_demo_in_small(tmp_path):
    done = demo(
        f"--rows={ROWS}", "--transaction-rows=250", "--json",
        f"--dir={tmp_path / 'data'}", f"--chart={tmp_path / 'chart.png'}",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    expected = report.figures_of_csv(ROWS)
    assert result["rows"] == ROWS
    assert result["differences"] == []
    assert result["consumed"] == ROWS
    assert "a member of the consumer was killed" in done.stderr
    assert result["carriers"] == {
        carrier: dataclasses.asdict(figures) for carrier, figures in expected.items()
    }
    assert sum(figures.flights for figures in expected.values()) == ROWS
    assert min(result["messages_per_second"].values()) > 0
    begin, sent = result["killed_in_transaction"]
    assert 2000 < begin < 4000
    assert 0 < sent < 250
    assert "was killed" in done.stderr
    assert f"producer 2 goes on at row {begin:,}" in done.stderr
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_demo_prints_a_table(tmp_path):
    done = demo("--rows=500", "--transaction-rows=50", f"--chart={tmp_path / 'chart.png'}")

    assert done.returncode == 0, done.stderr
    assert "carrier" in done.stdout
    assert "all 500 rows are there once, and the same as in the CSV file" in done.stdout
    assert str(tmp_path / "chart.png") in done.stdout


def test_a_directory_in_use_is_refused(tmp_path):
    (tmp_path / "something").touch()

    done = demo("--rows=10", f"--dir={tmp_path}")

    assert done.returncode == 2
    assert "isn't empty" in done.stderr


@pytest.mark.slow
def test_differences_fail_loudly(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["flights", "--rows=300", f"--chart={tmp_path / 'c.png'}"])
    monkeypatch.setattr(report, "figures_of_csv", lambda _limit: {"XX": report.Figures(300)})

    code = main()

    captured = capsys.readouterr()
    assert code == 1
    assert "WRONG: carrier XX: read " in captured.err
    assert "NO" in captured.out
    assert "the same as in the CSV file" not in captured.out


@pytest.mark.slow
def test_a_failing_producer_fails_loudly(tmp_path, monkeypatch, capsys):
    (tmp_path / "intents").mkdir()  # A directory can't be an intent log.
    work = [Share("producer 1", 0, 10, tmp_path / "intents")]
    monkeypatch.setattr("sys.argv", ["flights", "--rows=10", "--producers=1"])
    monkeypatch.setattr("examples.flights.__main__.shares", lambda *_: work)

    code = main()

    assert code == 1
    assert "FAILED: producer 1 ended before it could be killed" in capsys.readouterr().err


def tally_of(flights: list[data.Flight], total: int) -> report.Tally:
    tally = report.Tally(total)
    for flight in flights:
        tally.add(flight)
    return tally


def test_differences_are_found():
    rows = list(data.flights(end=100))
    expected = report.figures_of_csv(100)

    assert report.differences(expected, tally_of(rows, 100)) == []

    lost = report.differences(expected, tally_of(rows[:-1], 100))
    assert lost[0] == "1 rows are missing: 99"
    assert lost[1].startswith(f"carrier {rows[-1].carrier}: read ")

    twice = report.differences(expected, tally_of([*rows, rows[3]], 100))
    assert twice[0] == "1 rows are there more than once: 3"

    rows[5].row = 100
    foreign = report.differences(expected, tally_of(rows, 100))
    assert foreign == ["1 rows are missing: 5", "1 rows are not of the file: 100"]


def test_missing_values_are_none():
    first, cancelled = next(data.flights()), next(data.flights(838))

    assert (first.carrier, first.arr_delay, first.tailnum) == ("UA", 11, "N14228")
    assert (cancelled.dep_time, cancelled.arr_delay, cancelled.air_time) == (None, None, None)


@pytest.mark.parametrize(("total", "producers"), [(10, 3), (336_776, 3), (5, 5), (7, 1)])
def test_shares_cover_each_row_once(total, producers, tmp_path):
    work = shares(total, producers, tmp_path)

    assert [row for share in work for row in range(share.begin, share.end)] == list(range(total))
    assert len({share.intents for share in work}) == producers
