"""What fails is run once more, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import run

_TESTS = """
import pathlib

import pytest

@pytest.mark.parametrize("n", range({failing}))
def test_fails(n):
    attempts = pathlib.Path(__file__).with_name(f"attempts-{{n}}")
    with attempts.open("a") as file:
        file.write("x")
    assert attempts.stat().st_size > {times}

def test_passes():
    with pathlib.Path(__file__).with_name("passed").open("a") as file:
        file.write("x")
"""


def _run(directory: Path, *, failing: int, times: int) -> tuple[int, list[int]]:
    """Return the exit code, and how often each failing test and the other one ran."""
    file = directory / "test_it.py"
    file.write_text(_TESTS.format(failing=failing, times=times))
    code = run.main(["-q", "-p", "no:asyncio", f"--rootdir={directory}", str(file)])
    files = sorted(directory.glob("attempts-*"))
    return code, [each.stat().st_size for each in (*files, directory / "passed")]


def test_a_test_which_fails_once_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path, failing=1, times=1) == (0, [2, 1])
    _, _, told = capfd.readouterr().out.partition("UNSTABLE")
    assert "test_it.py::test_fails[0]" in told


def test_a_test_which_fails_twice_fails_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path, failing=1, times=2) == (1, [2, 1])
    assert "UNSTABLE" not in capfd.readouterr().out


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    failing = run.MOST + 1
    assert _run(tmp_path, failing=failing, times=1) == (1, [1] * (failing + 1))


def test_a_run_without_tests_fails(tmp_path: Path) -> None:
    assert run.main(["-q", f"--rootdir={tmp_path}", str(tmp_path)]) not in (0, 1)
