"""The golden data is whole, and described."""

from __future__ import annotations

import re
import subprocess
import sys

from tests import golden


def test_each_file_is_described():
    described = re.findall(
        r"^## (.*[./].*)$", (golden.HOME / "README.md").read_text("utf-8"), re.MULTILINE
    )
    kept = {
        path.name + ("/" if path.is_dir() else "")
        for path in golden.directory().iterdir()
        if path.name != "README.md"
    }
    assert set(described) == kept


def test_each_file_was_recorded_from_the_version_that_names_the_archive():
    version = golden.ARCHIVE.name.removesuffix(".tar.xz").rpartition("-")[2]
    for path in golden.directory().glob("**/*.json"):
        data = golden.load(str(path.relative_to(golden.directory())))
        assert version in data.get("generated_by", data.get("about")), path


def test_another_directory_has_to_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("GAZETTE_VECTORS", str(tmp_path / "nowhere"))
    done = subprocess.run(
        [sys.executable, "-c", "from tests import golden; golden.directory()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "GAZETTE_VECTORS names no directory" in done.stderr
