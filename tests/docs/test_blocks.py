"""Every block of README.md and docs/ works: Python is run, YAML applied, commands parsed.

The blocks of a page are run in order, against one broker which `$BROKER_ADDRESS` names. A YAML block
is a journal space. A Python block is a whole program; one with tests in it is given to pytest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import pytest

from gazette_aio import connect, load_journal_space
from gazette_aio.cli.app import cli

ROOT = Path(__file__).parents[2]
SPARK_PAGE = ROOT / "docs" / "spark.md"
"""Its programs are run where Spark is."""
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {SPARK_PAGE})]
FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

SAVED = re.compile(r"[Ss]ave\s+(?:it|this)\s+as\s+`(\w+\.py)`")


@dataclasses.dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    file: str
    """Name by which the page says to save it, or empty."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 2,
            match[2],
            # A machine that runs other tests may stall for longer than a service shall wait.
            textwrap.dedent(match[3]).replace("(timeout=5", "(timeout=60"),
            "".join(SAVED.findall(text[: match.start()].rstrip().rpartition("\n\n")[2])[-1:]),
        )
        for match in FENCE.finditer(text)
    ]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("docs") / "broker"
    command = [sys.executable, "-m", "gazette_aio", "serve", "--port=0", "--http-port=0"]
    with subprocess.Popen(
        [*command, "--fsync=off", "--min-append-rate=0", f"--data-dir={directory}"],
        stdout=subprocess.PIPE,
    ) as broker:
        try:
            yield json.loads(broker.stdout.readline())["endpoint"]
        finally:
            broker.terminate()


@pytest.fixture(autouse=True)
def surroundings(request, monkeypatch, tmp_path) -> None:
    for name in [name for name in os.environ if name.startswith("BROKER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_of(page, endpoint, monkeypatch, tmp_path, capsys):
    check_page(page, endpoint, monkeypatch, tmp_path)


def check_page(page, endpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("BROKER_ADDRESS", endpoint)
    blocks = blocks_of(page)
    for block in blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text)  # A test may import it.
    run_tests([block for block in blocks if is_test(block)], tmp_path)
    for block in blocks:
        match block.language:
            case "python" if is_test(block):
                continue
            case "python":
                run_program(block)
            case "yaml":
                asyncio.run(apply(block))
            case "console":
                parse_commands(block)
            case language:
                assert language == "text", f"{block}: nothing tests {language}"


def run_program(block: Block) -> None:
    # Padded, so that a traceback names the line of the page.
    source = "\n" * (block.line - 1) + block.text
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, str(block.page), "exec"), namespace)
    if (app := namespace.get("app")) is not None:
        asyncio.run(post_to(app))


async def post_to(app: object) -> None:
    """Exercise the web service of a page: its only route takes a JSON object."""
    fastapi = pytest.importorskip("fastapi")
    assert isinstance(app, fastapi.FastAPI)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        answer = await client.post("/events", json={"kind": "click"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["end"] > answer.json()["begin"]


def is_test(block: Block) -> bool:
    return block.language == "python" and "def test_" in block.text


def run_tests(blocks: list[Block], directory: Path) -> None:
    if not blocks:
        return
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    for block in blocks:
        (directory / f"test_line_{block.line}.py").write_text(block.text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= len(blocks)


async def apply(block: Block) -> None:
    space = load_journal_space(block.text, source=str(block))
    async with connect() as client:
        await client.apply(space.to_apply_request())


def parse_commands(block: Block) -> None:
    lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    assert lines, f"{block}: no commands"
    for line in lines:
        piped, _, written = line.removesuffix(" &").partition(" > ")
        if written:
            Path(written).touch()  # Later commands may require it.
        for each in piped.split(" | "):
            name, *args = shlex.split(each.partition(" < ")[0])
            if name == "gazette-aio":
                parse_command(args, f"{block}: {line}")


def parse_command(args: list[str], place: str) -> None:
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), args.pop(0))
    assert command is not None, place
    with command.make_context("documented", args):  # Closes what it opens.
        pass


def test_pages_have_blocks():
    assert sum(len(blocks_of(page)) for page in PAGES) > 10
