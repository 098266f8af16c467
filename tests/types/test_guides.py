"""Type checks of all programs of the guides, by two checkers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_blocks import PAGES, ROOT, SPARK_PAGE, blocks_of

pytest.importorskip("mypy")
pytest.importorskip("basedpyright")

pytestmark = pytest.mark.slow

CHECKERS = {
    "mypy": ["--check-untyped-defs", "--no-error-summary"],
    # Pyright's own default, which editors use.
    "basedpyright": ["--level", "error", "--pythonpath", sys.executable],
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guides")
    for block in (block for page in (*PAGES, SPARK_PAGE) for block in blocks_of(page)):
        if block.language == "python":
            name = block.page.stem.replace("-", "_").lower()
            # Others import files which the page says to save.
            path = directory / (block.file or f"{name}_{block.line}.py")
            assert not path.exists(), f"{block} is saved as another one"
            # As many lines as in the page, so that errors name its lines.
            path.write_text("\n" * (block.line - 1) + block.text)
    (directory / "mypy.ini").write_text("[mypy]\n")
    config = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("checker", CHECKERS)
def test_programs_of_guides_have_no_type_errors(programs: Path, checker: str) -> None:
    files = sorted(map(str, programs.glob("*.py")))
    assert len(files) > 40
    done = subprocess.run(
        [sys.executable, "-m", checker, *CHECKERS[checker], *files],
        cwd=programs,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
