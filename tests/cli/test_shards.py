"""`gazette-aio shards`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.consumer import Application
from gazette_aio.message import json_adapter
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.testing import consumer_harness, create_journals, journal_spec
from tests.consumer.api.members import StubMember, header, listed
from tests.waiting import eventually

SPACE = """\
common:
  max_txn_duration: 1s
shards:
  - id: shard-one
    sources:
      - journal: words/in
    labels:
      - name: color
        value: blue
  - id: shard-two
    sources:
      - journal: words/in
    hot_standbys: 1
"""


class Forgetful(Application[Any, Any]):
    """Consumes messages, and keeps nothing."""

    def adapter(self, spec):
        return json_adapter()

    def new_store(self, shard, recorder):
        return NoStore()

    def consume_message(self, shard, store, envelope, publisher):
        pass


class NoStore:
    """Never commits: nothing is consumed in these tests."""

    def start_commit(self, shard, checkpoint, wait_for):
        raise AssertionError("nothing is consumed")

    async def restore_checkpoint(self, shard):
        return Checkpoint()

    async def destroy(self):
        pass


@pytest.fixture
async def harness():
    async with consumer_harness(Forgetful()) as harness:
        labels = {"content-type": "application/x-ndjson"}
        await create_journals(harness.client, journal_spec("words/in", labels=labels))
        await harness.start_member()
        yield harness


@pytest.fixture
def shard_cli(harness, cli):
    async def run(*args, stdin=b"", env=None):
        variables = {
            "CONSUMER_ADDRESS": harness.members[0].endpoint,
            "CONSUMER_AUTH_KEYS": "c2VjcmV0",
            "BROKER_ADDRESS": harness.client.endpoint,
            **(env or {}),
        }
        return await cli("shards", *args, stdin=stdin, env=variables)

    return run


@pytest.fixture
async def applied(harness, shard_cli):
    done = await shard_cli("apply", stdin=SPACE.encode())
    assert (done.code, done.err) == (0, "")
    for shard in ("shard-one", "shard-two"):
        await harness.wait_for_primary(shard)
    return done


def shards_of(harness):
    return harness.members[0].session.group.items


async def test_apply_prints_the_revision(harness, applied):
    assert list(shards_of(harness)) == ["shard-one", "shard-two"]
    revision = shards_of(harness)["shard-one"].raw.mod_revision
    assert applied.text == f"revision {revision}: 2 upserted\n"


async def test_a_dry_run_shows_the_differences(harness, shard_cli, applied):
    before = {name: item.raw.mod_revision for name, item in shards_of(harness).items()}
    listed = (await shard_cli("list", "-o", "yaml")).text
    changed = listed.replace("blue", "red").replace("words/in", "words/in;one")
    done = await shard_cli("apply", "--dry-run", stdin=changed.encode())
    assert (done.code, done.err) == (0, "")
    assert done.text.splitlines() == [
        "~ shard-one",
        "    labels.color: blue -> red",
        "    sources: journal=words/in -> journal=words/in;one",
        "~ shard-two",
        "    sources: journal=words/in -> journal=words/in;one",
    ]
    assert (await shard_cli("apply", "--dry-run", stdin=SPACE.encode())).code == 0
    assert "nothing was changed" in (await shard_cli("apply", stdin=SPACE.encode())).err
    other = SPACE.replace("words/in", "words/in;one")
    stale = await shard_cli("apply", "--dry-run", "--json", stdin=other.encode())
    assert stale.code == 1
    assert "refused: shard-one: exists already, at revision" in stale.err
    assert [each["shard"] for each in stale.json["changes"]] == ["shard-one", "shard-two"]
    assert stale.json["changes"][0]["conflict"].startswith("exists already, at revision ")
    done = await shard_cli("apply", "--dry-run", "-o", "proto", stdin=SPACE.encode())
    assert 'id: "shard-one"' in done.text
    after = {name: item.raw.mod_revision for name, item in shards_of(harness).items()}
    assert after == before


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
async def test_a_source_must_exist(harness, shard_cli, options):
    done = await shard_cli("apply", *options, stdin=SPACE.replace("words/in", "words/out").encode())
    assert (done.code, done.out) == (1, b"")
    assert "named journal does not exist (words/out)" in done.err
    assert not shards_of(harness)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("shards: [{id: one, sources: [], unknown: 1}]", "unknown"),
        ("shards: []", "no shards"),
        ("shards: [{id: a}]", "invalid length"),
    ],
)
def test_an_invalid_file_sends_nothing(inline, text, reason):
    done = inline("shards", "apply", "--consumer.address=http://127.0.0.1:1", stdin=text.encode())
    assert done.code == 2
    assert reason in done.err


async def test_tables(harness, shard_cli, applied):
    await harness.client.append("words/in", b'{"half of a message')
    done = await shard_cli("list")
    while done.err:
        done = await shard_cli("list")  # A busy machine may not hear of the lag in time.
    assert done.text.splitlines() == [
        "ID         STATUS   PRIMARY           LAG",
        "shard-one  PRIMARY  member-1:PRIMARY   19",
        "shard-two  PRIMARY  member-1:PRIMARY   19",
    ]
    done = await shard_cli("list", "-l", "color", "--rf", "-p", "-r", "-L", "color", "--lag")
    header, row = done.text.splitlines()
    assert header.split() == ["ID", "STATUS", "RF", "PRIMARY", "REPLICAS", "COLOR", "LAG"]
    assert row.split() == ["shard-one", "PRIMARY", "1", "member-1:PRIMARY", "blue", "words/in:19"]


async def test_no_lag_without_a_broker(shard_cli, applied, unused_port):
    env = {"BROKER_ADDRESS": f"http://127.0.0.1:{unused_port}"}
    done = await shard_cli("list", env=env)
    assert (done.code, done.text.splitlines()[0].split()) == (0, ["ID", "STATUS", "PRIMARY"])
    assert done.err.startswith("gazette-aio: the lag is unknown: no broker answers at")
    done = await shard_cli("list", "--lag", "--timeout=0.1", env=env)
    while "doesn't answer" in done.err:
        done = await shard_cli("list", "--lag", "--timeout=0.1", env=env)
    assert (done.code, done.out) == (1, b"")


async def test_a_member_that_does_not_answer_is_named_once(cli, unused_port):
    route = header(f"http://127.0.0.1:{unused_port}").route
    shards = [listed(f"shard-{number:02}", route) for number in range(40)]
    asked = []

    async def stat(request, context):
        asked.append(request.shard)
        await asyncio.Event().wait()

    async with StubMember() as member:
        member.answer("List", pc.ListResponse(header=header(), shards=shards))
        member.answers["Stat"] = stat
        done = await cli("shards", "list", env={"CONSUMER_ADDRESS": member.endpoint})
    assert done.code == 0
    assert done.err == (
        "gazette-aio: member member doesn't answer: the lag of its shards is unknown\n"
    )
    header_row, *rows = (line.split() for line in done.text.splitlines())
    assert header_row == ["ID", "STATUS", "PRIMARY", "LAG"]
    assert {tuple(row[1:]) for row in rows} == {("PRIMARY", "member:PRIMARY", "<none>")}
    # It isn't waited for again.
    assert "shard-39" not in asked


async def test_json_and_proto(shard_cli, applied):
    done = await shard_cli("list", "-l", "id=shard-two", "--json", "--lag")
    [shard] = done.json["shards"]
    assert (shard["spec"]["id"], shard["lag"]) == ("shard-two", {"words/in": 0})
    # Members of this package leave out what is zero, and those of Gazette don't.
    assert shard["spec"]["min_txn_duration"] == "0s"
    assert done.json["extension"] is None
    done = await shard_cli("list", "-o", "proto")
    assert '  spec: <\n    id: "shard-two"\n' in done.text


async def test_the_lag_of_a_shard_without_primary_is_unknown(shard_cli, applied):
    disabled = SPACE.replace("- id: shard-one", "- id: shard-zero\n    disable: true")
    done = await shard_cli("apply", stdin=disabled.split("  - id: shard-two")[0].encode())
    assert (done.code, done.err) == (0, "")
    done = await shard_cli("list", "--lag")
    _, *rows = (line.split() for line in done.text.splitlines())
    assert [(row[0], row[-1]) for row in rows] == [
        ("shard-one", "words/in:0"),
        ("shard-two", "words/in:0"),
        ("shard-zero", "<none>"),
    ]
    done = await shard_cli("list", "-l", "id=shard-zero", "--json", "--lag")
    assert [shard["lag"] for shard in done.json["shards"]] == [None]


async def test_a_listing_can_be_edited_and_applied(harness, shard_cli, applied):
    listed = (await shard_cli("list", "-o", "yaml")).text
    done = await shard_cli("apply", stdin=listed.replace("blue", "red").encode())
    assert (done.code, done.err) == (0, "")
    [label] = shards_of(harness)["shard-one"].spec.labels.labels
    assert label.value == "red"
    # The listing is older now.
    done = await shard_cli("apply", stdin=listed.encode())
    assert done.code == 1
    assert "nothing was applied: shard-one: revision " in done.err


async def test_edit(harness, shard_cli, applied, editor):
    done = await shard_cli("edit", "-l", "color=blue", "--json", env=editor("s/blue/green/"))
    assert (done.code, done.err, done.json["upserts"]) == (0, "", ["shard-one"])
    [label] = shards_of(harness)["shard-one"].spec.labels.labels
    assert label.value == "green"


async def test_edit_opens_again_with_the_reason(harness, shard_cli, applied, editor, tmp_path):
    done = await shard_cli(
        "edit",
        "-l",
        "color=blue",
        env=editor("s|words/in|words/out|", "s|words/out|words/in|;s/blue/green/"),
    )
    assert (done.code, done.err) == (0, "")
    seen = (tmp_path / "seen.1").read_text()
    assert seen.startswith("# ")
    assert "named journal does not exist (words/out)" in seen


async def test_edit_sends_changed_shards_only(harness, shard_cli, applied, editor):
    before = {name: item.raw.mod_revision for name, item in shards_of(harness).items()}
    done = await shard_cli("edit", "-l", "", "--json", env=editor("/^ *revision/d;s/blue/green/"))
    assert (done.code, done.err, done.json["upserts"]) == (0, "", ["shard-one"])
    after = {name: item.raw.mod_revision for name, item in shards_of(harness).items()}
    assert after["shard-two"] == before["shard-two"]
    assert after["shard-one"] > before["shard-one"]


async def test_edit_of_nothing(shard_cli, applied):
    done = await shard_cli("edit", "-l", "color=none")
    assert (done.code, "no shard matches" in done.err) == (1, True)


async def test_stat(shard_cli, applied):
    done = await shard_cli("stat", "shard-one", "--read-through", "words/in:0")
    assert done.text.splitlines() == ["WHAT  JOURNAL   OFFSET", "read  words/in       0"]
    done = await shard_cli("stat", "shard-one", "--json")
    assert done.json == {"read_through": {"words/in": 0}, "publish_at": {}}
    done = await shard_cli("stat", "shard-none")
    assert (done.code, "no such shard, or the token doesn't cover it: shard-none" in done.err) == (
        1,
        True,
    )


@pytest.mark.parametrize("offset", ["words/in", "words/in:", "words/in:-1", ":1"])
def test_offsets_are_checked(inline, offset):
    done = inline("shards", "stat", "shard-one", "--read-through", offset)
    assert done.code == 2
    assert "JOURNAL:OFFSET" in done.err


async def test_unassign(harness, shard_cli, applied):
    before = harness.members[0].session.group.assignments("shard-one")[0].raw.create_revision
    # Scripts may pass the options of brokers to each command of shards, as gazctl takes them.
    done = await shard_cli("--broker.cache.size=0", "unassign", "-l", "color", "--dry-run")
    assert done.text == "would unassign shard-one\n"
    done = await shard_cli("unassign", "shard-two", "shard-one", "--dry-run")
    assert done.text == "would unassign shard-one\nwould unassign shard-two\n"
    done = await shard_cli("unassign", "shard-one", "no-shard")
    assert (done.code, done.err) == (1, "gazette-aio: no shard 'no-shard'\n")
    done = await shard_cli("unassign", "-l", "color", "--failed")
    assert (done.code, done.text) == (0, "")
    done = await shard_cli("unassign", "-l", "color", "--json")
    assert done.json == {"shards": ["shard-one"], "dry_run": False}

    def is_new():
        assigned = harness.members[0].session.group.assignments("shard-one")
        return bool(assigned) and assigned[0].raw.create_revision > before

    await eventually(is_new)


def test_nobody_answers(inline, unused_port):
    done = inline(
        "shards", "list", f"--consumer.address=http://127.0.0.1:{unused_port}", "--timeout=0.1"
    )
    assert done.code == 1
    assert "no consumer answers at" in done.err
