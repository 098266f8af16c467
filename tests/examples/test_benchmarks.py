"""The harness of the benchmarks, and the soak's way of telling what it can't do."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks import harness, measures, peers, spark

ROOT = Path(__file__).parents[2]


def measure(better, figures, yardsticks, goal):
    calls: list[str] = []

    @asynccontextmanager
    async def setup():
        async def figure() -> float:
            calls.append("figure")
            return figures.pop(0)

        async def yardstick() -> float:
            calls.append("yardstick")
            return yardsticks.pop(0)

        yield harness.Subject(figure, yardstick)
        calls.append("closed")

    return harness.Measure("some.name", goal, "/s", setup, better, rounds=3), calls


@pytest.mark.parametrize(
    ("better", "goal", "line"),
    [
        ("more", 0.2, "some.name 2/s 10/s 0.200 >=0.2 ok"),
        ("more", 0.21, "some.name 2/s 10/s 0.200 >=0.21 short"),
        ("less", 0.2, "some.name 2/s 10/s 0.200 <=0.2 ok"),
        ("less", 0.1, "some.name 2/s 10/s 0.200 <=0.1 short"),
    ],
)
async def test_rounds_are_interleaved_and_medians_compared(better, goal, line):
    subject, calls = measure(better, [2.0, 900.0, 1.0], [10.0, 0.1, 11.0], goal)

    result = await harness.run(subject)

    assert calls == ["figure", "yardstick"] * 3 + ["closed"]
    assert result.line() == line


async def test_a_measure_without_a_goal_is_reported():
    subject, _ = measure("more", [2.0] * 3, [10.0] * 3, None)

    result = await harness.run(subject)

    assert (result.ok, result.line()) == (True, "some.name 2/s 10/s 0.200 - reported")


def load_a_measure_of_messages():
    from gazette_aio.message.core import FORM

    async def setup():
        yield harness.Subject(harness.constant(3.0), harness.constant(5.0))

    harness.measure(f"form.{FORM}", goal=1.0, unit="/s", about="", rounds=1, plain=0.5)(setup)


def test_measures_of_messages_have_a_line_for_the_plain_core(capfd):
    of_messages = harness.Measure("form.plain", 1.0, "/s", lambda: None)

    is_ok = harness.report_plain(load_a_measure_of_messages, of_messages, rounds=None)

    assert is_ok
    assert capfd.readouterr().out == "form.plain.plain 3/s 5/s 0.600 >=0.5 ok\n"


def test_peers_are_left_out_without_their_programs(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("GAZETTE_GO_BENCH", raising=False)

    peers.load()

    told = capsys.readouterr().out
    assert "no java: measures beside Kafka are left out" in told
    assert "GAZETTE_GO_BENCH isn't set" in told


def test_all_measures_say_what_they_are():
    measures.load()
    spark.load()

    assert all(measure.about and measure.goal > 0 for measure in harness.registered().values())


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *args], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_one_measure_by_name():
    done = run("benchmarks", "--name=import.names", "--rounds=1")

    name, _, _, _, goal, verdict = done.stdout.split()
    assert (done.returncode, name, goal) == (0, "import.names", "<=0.8")
    assert verdict in ("ok", "short")


def test_an_unknown_measure_is_an_error():
    done = run("benchmarks", "--name=nothing-like-it")

    assert done.returncode == 2
    assert "no such measure" in done.stderr


def test_measures_of_spark_are_a_suite_of_their_own():
    listed = [
        [line.split(":")[0] for line in run("benchmarks", "--list", *suite).stdout.splitlines()]
        for suite in ([], ["--suite=spark"])
    ]

    are_of_spark = [[name.startswith("spark.") for name in names] for names in listed]
    assert [set(each) for each in are_of_spark] == [{False}, {True}]


def test_a_soak_which_is_not_there_says_so():
    done = run("benchmarks.soak", "--suite=nothing", "--duration=1")

    assert (done.returncode, done.stdout) == (2, "")
    choices = "'broker', 'client', 'consumer', 'services', 'spark'"
    assert f"(choose from {choices})" in done.stderr.replace('"', "'")


@pytest.mark.slow
def test_soak_of_the_broker():
    done = run("benchmarks.soak", "--suite=broker", "--duration=1", "--seed=7")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 7\n")
    assert "intact" in done.stdout
