"""`gazette-aio journals fragments`, `prune`, `reset-head`, `suspend`, `store-health`, `edit`."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.pruning import is_aged
from gazette_aio.cli.shell.quantities import age_of, size_of, unix_time
from gazette_aio.testing import create_journals, journal_spec
from tests.waiting import eventually


@pytest.fixture
async def stored(gazette_client: Any, gazette_broker: Any) -> str:
    """Name of a journal with one stored fragment and one that isn't stored."""
    spec = journal_spec("test/stored", stores=["file:///"], length=1024)
    spec.fragment.retention.FromSeconds(3600)
    await create_journals(gazette_client, spec)
    await gazette_client.append(spec.name, b"x" * 3000)
    await gazette_client.append(spec.name, b"y")

    async def is_stored() -> bool:
        listed = await gazette_client.list_fragments(spec.name)
        return any(each.spec.backing_store for each in listed.fragments)

    await gazette_broker.flush()
    await gazette_client.append(spec.name, b"z" * 10)
    await eventually(is_stored)
    return spec.name


async def test_fragments(broker_cli: Any, stored: str) -> None:
    table = await broker_cli("journals", "fragments", "-l", f"name={stored}")
    as_json = await broker_cli("journals", "fragments", "-l", f"name={stored}", "-o", "json")
    later = await broker_cli("journals", "fragments", "-l", f"name={stored}", "--to", "1000")
    proto = await broker_cli(
        "journals", "fragments", "-l", f"name={stored}", "-o", "proto", "--url-ttl=1m"
    )

    assert table.text.splitlines()[0].split() == [
        "JOURNAL", "OFFSET", "LENGTH", "PERSISTED", "SHA1", "COMPRESSION",
    ]  # fmt: skip
    lines = as_json.text.splitlines()
    assert lines[0].startswith('{"spec":{"journal":"test/stored","end":')
    assert len(lines) == len(table.text.splitlines()) - 1
    assert '"backing_store":"file:///"' not in later.text
    assert "fragments: <\n  spec: <\n" in proto.text
    assert "signed_url: " in proto.text


@pytest.mark.parametrize("command", ["fragments", "prune", "reset-head", "suspend"])
async def test_journals_are_chosen_by_names(
    broker_cli: Any, gazette_client: Any, stored: str, command: str
) -> None:
    await create_journals(gazette_client, journal_spec("test/other"), journal_spec("test/third"))
    both = await broker_cli("journals", command, stored, "test/other", "--json")
    missing = await broker_cli("journals", command, stored, "no/such")
    neither = await broker_cli("journals", command)
    too_much = await broker_cli("journals", command, stored, "-l", "name")
    selector = await broker_cli("journals", command, "name in (x)")

    assert (both.code, both.err) == (0, "")
    assert "test/stored" in both.text
    assert ("test/other" in both.text) == (command != "fragments"), "which has none"
    assert "test/third" not in both.text
    assert (missing.code, missing.out) == (1, b"")
    assert missing.err == "gazette-aio: no journal 'no/such'\n"
    assert (neither.code, too_much.code, selector.code) == (2, 2, 2)
    assert "give JOURNAL or --selector" in neither.err
    assert "use --selector for a label selector" in selector.err


async def test_prune_removes_what_is_older_than_the_retention(
    broker_cli: Any, gazette_broker: Any, stored: str, tmp_path: Any
) -> None:
    root = tmp_path / "gazette-broker" / "fragments"
    files = [path for path in (root / stored).rglob("*") if path.is_file()]
    args = ["journals", "prune", "-l", f"name={stored}", "--json", "--file-root", str(root)]
    young = await broker_cli(*args)
    for path in files:
        os.utime(path, (1_000_000, 1_000_000))
    await gazette_broker.refresh()
    planned = await broker_cli(*args, "--dry-run")
    rootless = await broker_cli(*args[:-2], "--dry-run")
    assert all(path.exists() for path in files)
    done = await broker_cli(*args)
    none = await broker_cli("journals", "prune", "-l", "name=no/such")

    assert young.json["journals"][0]["pruned_fragments"] == 0
    assert planned.json["journals"][0]["pruned_fragments"] == len(files)
    assert done.json["journals"] == planned.json["journals"]
    assert (planned.err, rootless.json) == ("", planned.json)
    needed = "store file:///: it needs --file-root or $BROKER_FILE_ROOT"
    assert rootless.err == f"gazette-aio: nothing would be removed of {needed}\n"
    assert not any(path.exists() for path in files)
    assert (none.code, none.err) == (1, "gazette-aio: no journal matches 'name=no/such'\n")


async def test_a_read_of_a_hole_before_the_spool_says_what_to_do(
    broker_cli: Any, gazette_broker: Any, gazette_client: Any, stored: str, tmp_path: Any
) -> None:
    shutil.rmtree(tmp_path / "gazette-broker" / "fragments" / stored)
    await gazette_broker.refresh()
    of_one = await broker_cli("journals", "read", stored)
    of_many = await broker_cli("journals", "read", "-l", f"name={stored}")
    with pytest.raises(pb.OffsetNotYetAvailableError) as raised:
        async with gazette_client.read(stored) as reader:
            await reader.read()
    [listed] = (await gazette_client.list_fragments(stored)).fragments
    begin = listed.spec.begin
    later = await broker_cli("journals", "read", stored, f"--offset={begin}")

    text = "the offset is below the write head, and no fragment has it: its content was removed"
    for done in (of_one, of_many):
        assert (done.code, done.out) == (0, b"")
        assert text in done.err
        assert "Read from the begin of a listed fragment, or later" in done.err
        assert "`journals fragments` lists them" in done.err
    assert raised.value.is_below_head
    assert text in str(raised.value)
    assert later.out == b"z" * 10


def test_retention_decides() -> None:
    spec = pb.JournalSpec(name="a/journal")
    stored = pb.Fragment(end=10, backing_store="file:///", mod_time=1000)
    local = pb.Fragment(begin=10, end=30)

    assert not is_aged(spec, stored, 5000.0), "none keeps all"
    spec.fragment.retention.FromSeconds(4000)
    assert is_aged(spec, stored, 5000.0)
    assert not is_aged(spec, local, 5000.0)
    assert not is_aged(spec, stored, 4999.0)


async def test_reset_head(broker_cli: Any, stored: str) -> None:
    done = await broker_cli("journals", "reset-head", "-l", "prefix=test/")

    assert (done.code, done.err) == (0, "")
    assert done.text == "test/stored: reset to 3011\n"


async def test_suspend(broker_cli: Any, stored: str) -> None:
    kept = await broker_cli("journals", "suspend", "-l", f"name={stored}")
    done = await broker_cli("journals", "suspend", "-l", f"name={stored}", "--force", "--json")
    listed = await broker_cli("journals", "list", "-p", "--rf", "--stores", "-L", "color")
    again = await broker_cli("journals", "suspend", "-l", f"name={stored}")

    assert kept.text.startswith("test/stored: "), kept.err
    assert done.json == {"journal": "test/stored", "result": "SUSPENDED", "failed": False} or (
        done.json["result"] == "OK"
    )
    header, row = listed.text.splitlines()
    assert header.split() == ["NAME", "RF", "PRIMARY", "STORES", "COLOR"]
    assert "<S>" in row
    assert again.code == 0


async def test_store_health(broker_cli: Any) -> None:
    healthy = await broker_cli("journals", "store-health", "file:///")
    bad = await broker_cli("journals", "store-health", "nowhere")

    assert (healthy.code, healthy.text) == (0, "Fragment store file:/// is healthy\n"), healthy
    assert bad.code == 2


# As `gazctl` prints them.
@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "now"),
        (1, "1 second ago"),
        (7300, "2 hours ago"),
        (360 * 86_400 - 1, "11 months ago"),
        (360 * 86_400, "1 year ago"),
        (540 * 86_400, "2 years ago"),
        (8e7, "2 years ago"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert age_of(seconds) == text


# As `gazctl` prints them.
@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (9, "9 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3000, "2.9 KiB"),
        (10188, "9.9 KiB"),
        (10189, "10 KiB"),
        (107_981, "106 KiB"),
        (107_008, "104 KiB"),
        (1_048_575, "1024 KiB"),
        (1_125_899_906_842_600, "1024 TiB"),
        (1_125_899_906_842_621, "1.0 PiB"),
        (1 << 62, "4.0 EiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_of(count) == text


def test_times(inline: Any) -> None:
    parameters: Any = (None, None)
    assert unix_time(*parameters, "-5") == -5
    assert unix_time(*parameters, "1970-01-02T00:00:00+00:00") == 86400
    refused = inline("journals", "fragments", "-l", "a=b", "--from=yesterday")
    assert refused.code == 2
    assert "'yesterday' is neither" in refused.err
