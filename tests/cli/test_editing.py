"""`gazette-aio journals edit`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import gazette_aio.protocol as pb
from gazette_aio.cli.specs.editing import edit_specs
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


async def kept(err: str) -> str:
    """Return the text of the file that the last line of a failure names, and remove the file."""
    line = err.splitlines()[-1]
    path = Path(line.rpartition(" the text is kept in ")[2])
    text = await asyncio.to_thread(path.read_text)
    await asyncio.to_thread(path.unlink)
    return text


async def colors(client: Any) -> list[str]:
    journals = (await client.list()).journals
    return [pb.value_of(item.spec.labels, "color") for item in journals]


def conflicting(editor: dict[str, str]) -> dict[str, str]:
    """Have another person paint topic/two in red first, the last journal by its name."""
    return meanwhile(
        editor,
        "gazette-aio journals list -l name=topic/two -o yaml | sed 's/blue/red/'"
        " | gazette-aio journals apply >/dev/null 2>&1",
    )


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
    assert "max_append_rate: 8192" in await kept(done.err)
    assert "was changed or deleted meanwhile" in (tmp_path / "seen.1").read_text()
    assert (await rates(gazette_client))["topic/one"] == 4096


async def test_an_editor_that_fails_loses_no_text(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any
) -> None:
    """As of vi's `:cq`, once the text was refused."""
    env = editor(RATE.format("topic.one", 4096) + ";s/blue/not valid/", "{")  # No script of sed.
    done = await broker_cli("journals", "edit", "topic/one", env=env)

    assert done.code == 1
    assert "Editing failed; the text is kept in " in done.err
    assert "max_append_rate: 4096" in await kept(done.err)


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


async def test_edit_goes_on_after_the_transactions_that_were_applied(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any, tmp_path: Path
) -> None:
    """The text still has the revisions before them, of journals that it changes again or not."""
    env = conflicting(
        editor(
            "s/blue/green/",
            "/name: topic.two/,/revision/s/revision: .*/revision: -1/;"
            "/name: topic.one$/a\\  max_append_rate: 4096",
        )
    )
    done = await broker_cli(
        "journals", "edit", "-l", "prefix=topic/", "--batch-size=1", "--json", env=env
    )

    assert (done.code, done.err) == (0, "")
    assert done.json["upserts"] == ["topic/one", "topic/three", "topic/two"]
    reason = (tmp_path / "seen.1").read_text().splitlines()[0]
    assert (
        "2 of 3 changes are applied, through topic/three; not applied: 1, from topic/two on"
        in reason
    )
    assert await colors(gazette_client) == ["green", "green", "green"]
    assert (await rates(gazette_client))["topic/one"] == 4096


async def test_a_journal_that_was_deleted_by_a_transaction_isnt_deleted_again(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any
) -> None:
    env = conflicting(
        editor(
            "s/blue/green/;/name: topic.one$/a\\  delete: true",
            "/name: topic.two/,/revision/s/revision: .*/revision: -1/",
        )
    )
    done = await broker_cli(
        "journals", "edit", "-l", "prefix=topic/", "--batch-size=1", "--json", env=env
    )

    assert (done.code, done.err) == (0, "")
    assert (done.json["upserts"], done.json["deletes"]) == (
        ["topic/three", "topic/two"],
        ["topic/one"],
    )
    assert await colors(gazette_client) == ["green", "green"]


async def test_who_gives_up_is_told_what_was_applied(
    broker_cli: Any, gazette_client: Any, topic: None, editor: Any
) -> None:
    env = conflicting(editor("s/blue/green/", "s/x/x/"))
    done = await broker_cli("journals", "edit", "-l", "prefix=topic/", "--batch-size=2", env=env)

    assert (done.code, done.out) == (1, b"")
    assert "; applied are topic/one, topic/three; the text is kept in " in done.err
    assert "value: green" in await kept(done.err)
    assert await colors(gazette_client) == ["green", "green", "red"]


def test_an_interrupted_edit_keeps_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = pb.Node(spec=journal_spec("topic/one"), revision=3)
    text = pb.dump_journal_space(journal)
    monkeypatch.setattr(click, "edit", lambda shown, **_: shown.replace("SNAPPY", "GZIP"))

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edit_specs(
            text,
            lambda each: pb.load_journal_space(each).to_apply_request(),
            interrupt,
            as_json=False,
        )

    line = capsys.readouterr().err
    assert line.startswith("gazette-aio: interrupted; the text is kept in ")
    assert "compression_codec: GZIP" in asyncio.run(kept(line))
