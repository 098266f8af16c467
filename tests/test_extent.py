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


CASES = """
import importlib
import sys
from hypothesis import given, strategies as st
from tests import extent

extent.choose(long=False)
for name in sys.argv[1:]:
    importlib.import_module(name)

@given(st.text(), st.integers(), st.floats())
def show(text, whole, real):
    print(ascii(text), whole, real)

show()
"""


def test_cases_of_the_seeded_form_are_the_same_whatever_is_imported(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CASES)
    literals = [f"{number * 1_000_003}, {number}.5, 'text {number}'" for number in range(300)]
    (tmp_path / "literals.py").write_text(f"VALUES = [{', '.join(literals)}]")

    outputs = [
        subprocess.run(
            [sys.executable, program, *names],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for names in ([], ["literals"])
    ]

    assert outputs[0] == outputs[1]
