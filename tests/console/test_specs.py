"""Edits of journal specs through the console."""

from __future__ import annotations

from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import get_journal
from gazette_aio.console.specs import MAX_TEXT, SpecEdit, edit_request, review, spec_text
from gazette_aio.testing import create_journals, journal_spec
from tests.console.serving import KEYS, asked, bearer, serving

_READ = pb.Capability.LIST | pb.Capability.READ
_APPLY = _READ | pb.Capability.APPLY


def _listed(revision: int = 7) -> pb.ListResponse.Journal:
    spec = journal_spec("a/journal", labels={"content-type": "text/plain", "tenant": "blue"})
    return pb.ListResponse.Journal(spec=spec, mod_revision=revision)


def _edit(text: str | None = None, **changed: Any) -> SpecEdit:
    shown = spec_text(_listed())
    return SpecEdit(**{**shown, "text": text or shown["text"], **changed})


def test_a_text_is_the_spec():
    shown = spec_text(_listed())
    assert (shown["name"], shown["revision"]) == ("a/journal", "7")
    assert "revision" not in shown["text"]
    [change] = edit_request(_edit()).changes
    assert (change.upsert, change.expect_mod_revision) == (_listed().spec, 7)
    reviewed = review(edit_request(_edit()), {"a/journal": _listed()})
    assert reviewed == {"action": "keep", "fields": [], "conflict": ""}


def test_differences_are_shown():
    text = spec_text(_listed())["text"].replace("replication: 1", "replication: 3")
    text = text.replace("blue", "green") + "max_append_rate: 1024\n"
    reviewed = review(edit_request(_edit(text)), {"a/journal": _listed()})
    assert reviewed["action"] == "update"
    assert {field["path"]: (field["old"], field["new"]) for field in reviewed["fields"]} == {
        "labels.tenant": ("blue", "green"),
        "max_append_rate": (None, "1024"),
        "replication": ("1", "3"),
    }


def test_conflicts_are_shown():
    reviewed = review(edit_request(_edit()), {"a/journal": _listed(revision=9)})
    assert "revision 7 is expected, but it's 9" in reviewed["conflict"]
    reviewed = review(edit_request(_edit(revision="0")), {})
    assert (reviewed["action"], reviewed["conflict"]) == ("create", "")


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (_edit(name="a/other"), "can't be renamed"),
        (_edit(name="<script>"), "not a valid token"),
        (_edit(name="../a/journal"), "cannot begin"),
        (_edit(revision="-1"), "revision"),
        (_edit(revision=""), "revision"),
        (_edit(revision="1" * 30), "revision"),
        (_edit(spec_text(_listed())["text"] + "revision: -1\n"), "another revision"),
        (_edit(spec_text(_listed())["text"] + "revision: 8\n"), "another revision"),
        (_edit(spec_text(_listed())["text"] + "delete: true\n"), "without `delete`"),
        (_edit(spec_text(_listed())["text"] + "colour: red\n"), "colour"),
        (_edit("name: a/\nchildren: [{name: a/one}, {name: a/two}]"), "one journal"),
        (_edit("name: a/journal"), "Replication"),
        (_edit(": : :"), "spec:1"),
        (_edit("[" * 500), "spec"),
        (_edit("# " + "x" * MAX_TEXT), "at most"),
        (_edit("!!python/object:os.system {}"), "spec:1"),
    ],
)
def test_texts_that_are_not_the_spec(edit, problem):
    with pytest.raises(pb.ValidationError, match=problem):
        edit_request(edit)


async def test_an_edit(gazette_broker, gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal"))
    async with serving(gazette_broker) as page:
        shown = await asked(page, "/api/spec?name=a/journal")
        edit = {**shown, "text": shown["text"] + "max_append_rate: 4096\n"}
        reviewed = await asked(page, "/api/review", body=edit)
        [field] = reviewed["fields"]
        assert field == {"path": "max_append_rate", "old": None, "new": "4096"}
        # A review changes nothing.
        assert (await get_journal(gazette_client, "a/journal")).spec.max_append_rate == 0
        applied = await asked(page, "/api/apply", body=edit)
        journal = await get_journal(gazette_client, "a/journal")
        assert journal.spec.max_append_rate == 4096
        assert applied == {"name": "a/journal", "revision": str(journal.mod_revision)}
        # Whoever edits the earlier spec learns of it, and changes nothing.
        reviewed = await asked(page, "/api/review", body=edit)
        assert "is expected" in reviewed["conflict"]
        edit["text"] = shown["text"] + "max_append_rate: 9\n"
        refused = await asked(page, "/api/apply", 409, body=edit)
        assert "has changed" in refused["problem"]
        assert (await get_journal(gazette_client, "a/journal")).spec.max_append_rate == 4096
        await asked(page, "/api/spec?name=a/missing", 404)


async def test_journals_are_created(gazette_broker, gazette_client):
    async with serving(gazette_broker) as page:
        text = spec_text(pb.ListResponse.Journal(spec=journal_spec("a/new")))["text"]
        edit = {"name": "a/new", "revision": "0", "text": text}
        assert (await asked(page, "/api/review", body=edit))["action"] == "create"
        await asked(page, "/api/apply", body=edit)
        created = (await get_journal(gazette_client, "a/new")).spec
        assert (created.replication, created.fragment.length) == (1, 16 << 20)
        await asked(page, "/api/apply", 409, body=edit)


@pytest.mark.gazette_broker(auth_keys=KEYS)
async def test_edits_need_a_token_that_permits_them(gazette_broker, gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal"), journal_spec("b/journal"))
    reads, applies = await bearer(_READ), await bearer(_APPLY, "name:prefix=a/")
    async with serving(gazette_broker) as page:
        shown = await asked(page, "/api/spec?name=a/journal", Authorization=reads)
        edit = {**shown, "text": shown["text"] + "max_append_rate: 4096\n"}
        await asked(page, "/api/apply", 401, body=edit)
        await asked(page, "/api/apply", 401, body=edit, Authorization=reads)
        await asked(page, "/api/review", body=edit, Authorization=reads)
        assert (await get_journal(gazette_client, "a/journal")).spec.max_append_rate == 0
        # A selector of the token confines edits, too.
        other = await asked(page, "/api/spec?name=b/journal", Authorization=reads)
        beyond = {**other, "text": other["text"] + "max_append_rate: 4096\n"}
        await asked(page, "/api/review", body=beyond, Authorization=applies)
        await asked(page, "/api/apply", 401, body=beyond, Authorization=applies)
        await asked(page, "/api/apply", body=edit, Authorization=applies)
    assert (await get_journal(gazette_client, "a/journal")).spec.max_append_rate == 4096
    assert (await get_journal(gazette_client, "b/journal")).spec.max_append_rate == 0


async def test_forged_edits(gazette_broker, gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal"))
    async with serving(gazette_broker) as page:
        shown = await asked(page, "/api/spec?name=a/journal")
        edit = {**shown, "text": shown["text"] + "max_append_rate: 4096\n"}
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Host": "evil.example"},
            {"Content_Type": "text/plain"},
            {"Content_Type": "application/x-www-form-urlencoded"},
        ):
            await asked(page, "/api/apply", 403, body=edit, **headers)
        async with page.get("/api/apply", params=edit) as response:
            assert response.status == 405
        for body in ({**edit, "force": True}, {"name": "a/journal"}, [], {**edit, "revision": -1}):
            await asked(page, "/api/apply", 400, body=body)
        await asked(page, "/api/apply", 413, body={**edit, "text": "x" * (300 << 10)})
    assert (await get_journal(gazette_client, "a/journal")).spec.max_append_rate == 0


async def test_a_console_that_only_reads(gazette_broker, gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal"))
    async with serving(gazette_broker, read_only=True) as page:
        shown = await asked(page, "/api/spec?name=a/journal")
        edit = {**shown, "text": shown["text"] + "max_append_rate: 4096\n"}
        await asked(page, "/api/review", body=edit)
        await asked(page, "/api/apply", 403, body=edit)
        # The pages leave out what is refused.
        for path in ("/", "/shards.html"):
            async with page.get(path) as response:
                assert '<html class="read-only" ' in await response.text()
    assert (await get_journal(gazette_client, "a/journal")).spec.max_append_rate == 0
