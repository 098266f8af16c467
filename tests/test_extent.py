"""How far tests of random cases go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import subprocess
import sys
from tests import extent

extent.choose(long=True)
print(extent.seed(), flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


def test_processes_of_a_long_run_share_its_seed(tmp_path: Path) -> None:
    """The workers of a run must find the same tests, whose names have seeds."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {key: value for key, value in os.environ.items() if key != "GAZETTE_SEED"}

    outputs = [
        subprocess.run(
            [sys.executable, program],
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]

    assert all(own == its_child for own, its_child in outputs)
    assert outputs[0] != outputs[1]
