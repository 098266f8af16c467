"""`gazette-aio journals edit`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.testing import create_journals, journal_spec

TOPIC = ("topic/one", "topic/three", "topic/two")


@pytest.fixture
async def topic(gazette_client: Any) -> None:
    labels = {"color": "blue"}
    await create_journals(gazette_client, *(journal_spec(name, labels=labels) for name in TOPIC))


async def rates(client: Any) -> dict[str, int]:
    return {item.spec.name: item.spec.max_append_rate for item in (await client.list()).journals}


async def revisions(client: Any) -> dict[str, int]:
    return {item.spec.name: item.mod_revision for item in (await client.list()).journals}


RATE = "/name: {0}$/a\\  max_append_rate: {1}"


def meanwhile(editor: dict[str, str], *commands: str) -> dict[str, str]:
    """Have an editor run commands of `gazette-aio` first."""
    path = Path(editor["GAZ_EDITOR"])
    first, rest = path.read_text().split("\n", 1)
    program = shlex.join([sys.executable, "-m", "gazette_aio"])
    lines = [first, *(command.replace("gazette-aio", program) for command in commands)]
    path.write_text("\n".join([*lines, rest]))
    return editor


async def test_only_changed_journals_are_sent(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any
) -> None:
    before = await revisions(gazette_client)
    # Another person changes a journal of the text that this one doesn't change.
    env = meanwhile(
        editor(RATE.format("topic.one", 4096)),
        "gazette-aio journals list -l name=topic/two -o yaml | sed 's/blue/green/'"
        " | gazette-aio journals apply >/dev/null",
    )
    done = await broker_cli("journals", "edit", "-l", "prefix=topic/", "--json", env=env)

    assert done.err == ""
    assert (done.code, done.err, done.json["upserts"]) == (0, "", ["topic/one"])
    assert await rates(gazette_client) == {"topic/one": 4096, "topic/three": 0, "topic/two": 0}
    after = await revisions(gazette_client)
    assert [name for name in TOPIC if after[name] != before[name]] == ["topic/one", "topic/two"]
    listed = await gazette_client.list("color=green")
    assert [item.spec.name for item in listed.journals] == ["topic/two"]


@pytest.mark.slow
async def test_a_changed_journal_keeps_its_revision(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any, tmp_path: Path
) -> None:
    # The revision of a person who removes it from the text is that of the listing.
    env = editor("/^ *revision:/d;" + RATE.format("topic.one", 4096))
    done = await broker_cli("journals", "edit", "-l", "prefix=topic/", env=env)
    assert (done.code, done.err) == (0, "")

    env = meanwhile(
        editor("/^ *revision:/d;s/4096/8192/"),
        "gazette-aio journals list -l name=topic/one -o yaml | sed 's/blue/green/'"
        " | gazette-aio journals apply >/dev/null",
    )
    (tmp_path / "count").unlink()
    done = await broker_cli("journals", "edit", "-l", "name=topic/one", env=env)

    assert done.code == 1
    [line] = done.err.splitlines()
    kept = Path(line.rpartition(" ")[2])
    with kept.open() as file:  # noqa: ASYNC230 - Nothing else runs.
        assert "max_append_rate: 8192" in file.read()
    await asyncio.to_thread(kept.unlink)
    assert "was changed or deleted meanwhile" in (tmp_path / "seen.1").read_text()
    assert (await rates(gazette_client))["topic/one"] == 4096


async def test_an_editor_that_fails_loses_no_text(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any
) -> None:
    """As of vi's `:cq`, once the text was refused."""
    env = editor(RATE.format("topic.one", 4096) + ";s/blue/not valid/", "{")  # No script of sed.
    done = await broker_cli("journals", "edit", "-l", "name=topic/one", env=env)

    assert done.code == 1
    assert "Editing failed; the text is kept in " in done.err
    kept = Path(done.err.split()[-1])
    with kept.open() as file:  # noqa: ASYNC230 - Nothing else runs.
        assert "max_append_rate: 4096" in file.read()
    await asyncio.to_thread(kept.unlink)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ("s/x/x/", ""),
        ("d", ""),
        ("1i# A remark of mine", ""),
        ("/^ *revision:/d", ""),
        ("/name: topic.three/,/revision/d", ": specs that aren't in the text are kept"),
    ],
)
async def test_nothing_was_changed(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any, change: str, note: str
) -> None:
    before = await revisions(gazette_client)
    done = await broker_cli("journals", "edit", "-l", "prefix=topic/", env=editor(change))

    assert (done.code, done.text) == (0, "")
    assert done.err == f"gazette-aio: nothing was changed{note}\n"
    assert await revisions(gazette_client) == before


async def test_a_deleted_journal_keeps_its_revision(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any
) -> None:
    env = editor("/name: topic.one$/a\\  delete: true")
    done = await broker_cli("journals", "edit", "-l", "prefix=topic/", "--json", env=env)

    assert (done.code, done.err, done.json["deletes"]) == (0, "", ["topic/one"])
    assert list(await rates(gazette_client)) == ["topic/three", "topic/two"]
