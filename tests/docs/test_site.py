"""The documentation builds without warnings, and its navigation names every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_navigation_names_every_page():
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}

    assert named == there


@pytest.mark.slow
@pytest.mark.timeout(240)  # It's a tool which imports all there is.
def test_site_builds(tmp_path):
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "api" / "client" / "index.html").read_text("utf-8")
    assert "JournalClient" in page


def test_links_between_files_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path}: {target}"
