"""Type checks of programs which use this package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MARKER = re.compile(r"  # error: ([\w-]+)$")
REPORT = re.compile(r"(?P<path>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$")


@pytest.mark.slow
def test_mypy_accepts_good_programs_and_finds_each_mistake_of_bad_ones():
    bad, good = HERE / "bad.py", HERE / "good.py"
    expected = {
        (bad.name, number, match[1])
        for number, line in enumerate(bad.read_text("utf-8").splitlines(), 1)
        if (match := MARKER.search(line))
    }

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(good), str(bad)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    found = {
        (Path(match["path"]).name, int(match["line"]), match["code"])
        for line in done.stdout.splitlines()
        if (match := REPORT.match(line))
    }
    assert found == expected, done.stdout + done.stderr
