"""What a release promises: its public names, its extras, and the Pythons it's for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import gazette_aio
from release.extras import USES

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
PINNED = Path(__file__).parent / "public_names.txt"


def names_of(path: Path) -> list[str]:
    """Return names that a module imports `as` themselves, or its `__all__`, else what it defines."""
    tree = ast.parse(path.read_text("utf-8"))
    body = tree.body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    if names := [each.name for node in imports for each in node.names if each.name == each.asname]:
        return names
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def public_names() -> list[str]:
    """Return the names of the modules that the API reference documents."""
    documented = {
        name
        for page in sorted((ROOT / "docs" / "api").glob("*.md"))
        for name in re.findall(r"^::: (gazette_aio[\w.]*)", page.read_text("utf-8"), re.MULTILINE)
    }
    found: set[str] = set()
    for name in {"gazette_aio", *documented}:
        place = ROOT.joinpath(*name.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                found |= {f"{name}.{each}" for each in names_of(path)}
    return sorted(found)


def test_public_names_are_pinned():
    """`GAZETTE_PIN=1` writes the file anew, whose difference belongs to the changelog."""
    found = public_names()
    if os.environ.get("GAZETTE_PIN"):
        PINNED.write_text("\n".join(found) + "\n", "utf-8")

    pinned = PINNED.read_text("utf-8").split()

    assert sorted(set(pinned) - set(found)) == [], "names are gone"
    assert sorted(set(found) - set(pinned)) == [], "names are new"


def test_each_extra_is_checked():
    assert USES.keys() == PROJECT["optional-dependencies"].keys()


def test_without_extras_each_use_names_its_extra():
    done = subprocess.run(
        [sys.executable, ROOT / "release" / "extras.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_the_page_of_an_index_links_to_the_projects_home():
    (home,) = re.findall(r"^repo_url: (.*)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    page = (ROOT / "README.md").read_text("utf-8")
    for each in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        page = re.sub(each["pattern"], each["replacement"], page)
    links = re.findall(r"\]\((.*?)\)", page)

    assert len(links) > 20
    assert [each for each in links if not each.startswith(("https://gazette.dev", home))] == []
    assert {home, f"{home}/blob/main/CHANGELOG.md"} < set(PROJECT["urls"].values())


def test_the_changelog_has_the_version():
    assert f"\n## [{gazette_aio.__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_pythons_are_those_that_are_tested():
    (tested,) = re.findall(r"^PYTHONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    prefix = "Programming Language :: Python :: 3."
    named = [each for each in PROJECT["classifiers"] if each.startswith(prefix)]

    assert [each.rpartition(" ")[2] for each in named] == tested.split()
    assert PROJECT["requires-python"] == f">={tested.split()[0]}"


def test_extras_of_a_wheel_are_read_without_installed_packages(tmp_path):
    """The interpreter of `make packages` has none, not even those of the base installation."""
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/METADATA", "Provides-Extra: none of the wheel\n")
        archive.writestr(
            "a-1.dist-info/METADATA", "Name: a\nProvides-Extra: x\nProvides-Extra: y\n"
        )
    program = "import packages, pathlib, sys; print(*packages.extras_of(pathlib.Path(sys.argv[1])))"

    done = subprocess.run(
        [sys.executable, "-S", "-c", program, wheel],
        cwd=ROOT / "release",
        env={"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "x y\n", done.stderr
