"""Journals which options select: their heads, fragments and labels, by few RPCs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import gazette_aio.protocol as pb
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo, plan_ranges
from gazette_aio.spark.planning.listing import list_journals
from gazette_aio.testing import create_journals, journal_spec

NDJSON = "application/x-ndjson"
BROKERS = "http://localhost:1"  # The client of each test is another one.


def options(**given):
    return SourceOptions.parse({"brokers": BROKERS, **given}, streaming=False)


@pytest.fixture
async def client(gazette_client, tmp_path):
    specs = [
        journal_spec("a/one", labels={"content-type": NDJSON, "region": "eu", "app": "x"}),
        journal_spec("a/two", labels={"content-type": NDJSON, "app": "x"}),
        journal_spec("b/empty"),
        journal_spec("b/full"),
    ]
    specs[1].labels.CopyFrom(
        pb.label_set("app", "x", "content-type", NDJSON, "part", "2", "part", "1")
    )
    specs[3].suspend.level = pb.JournalSpec.Suspend.FULL
    specs[3].suspend.offset = 1234
    await create_journals(gazette_client, *specs)
    await gazette_client.append("a/one", b"1\n")
    await gazette_client.append("a/two", b"22\n")
    await gazette_client.append("a/two", b"333\n")
    return gazette_client


@pytest.fixture
def calls(client, monkeypatch):
    """Counts the RPCs of each journal."""
    counts = Counter()
    rpc = client.context.rpc
    real_fragments, real_read = rpc.list_fragments, rpc.read

    def list_fragments(request):
        counts["fragments", request.journal] += 1
        return real_fragments(request)

    def read(request, *args, **kwargs):
        counts["read", request.journal] += 1
        return real_read(request, *args, **kwargs)

    monkeypatch.setattr(rpc, "list_fragments", list_fragments)
    monkeypatch.setattr(rpc, "read", read)
    return counts


async def test_what_is_known_of_journals(client):
    found = await list_journals(client, options(prefix="a/"), fragments=True)
    revision = (await client.list("name=a/one")).journals[0].create_revision
    assert revision > 0
    assert [replace(info, fragments=None) for info in found] == [
        JournalInfo(
            "a/one",
            2,
            NDJSON,
            (("app", ("x",)), ("content-type", (NDJSON,)), ("region", ("eu",))),
            revision,
        ),
        JournalInfo(
            "a/two",
            7,
            NDJSON,
            (("app", ("x",)), ("content-type", (NDJSON,)), ("part", ("1", "2"))),
            revision,
        ),
    ]
    one, two = found
    assert one.fragments == (FragmentInfo(0, 2),)
    assert (two.fragments[0].begin, two.fragments[-1].end) == (0, 7)
    probed = await list_journals(client, options(prefix="a/"), fragments=False)
    assert [(info.name, info.head, info.fragments) for info in probed] == [
        ("a/one", 2, None),
        ("a/two", 7, None),
    ]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"selector": "app=x"}, ["a/one", "a/two"]),
        ({"selector": "region=eu"}, ["a/one"]),
        ({"selector": "!app"}, ["b/empty", "b/full"]),
        ({"journals": "b/empty,a/two"}, ["a/two", "b/empty"]),
        ({"prefix": "a/t"}, ["a/two"]),
    ],
)
async def test_selections(client, given, names):
    for fragments in (True, False):
        found = await list_journals(client, options(**given), fragments=fragments)
        assert [info.name for info in found] == names


async def test_empty_and_suspended_journals_have_nothing_to_read(client, calls):
    empty, full = await list_journals(client, options(prefix="b/"), fragments=True)
    assert (empty.head, empty.fragments, empty.content_type) == (0, (), "")
    # A stream goes on where it was, and a batch doesn't wait for what can't be read.
    assert (full.head, full.earliest, full.fragments) == (1234, 1234, ())
    assert plan_ranges([empty, full]) == []
    assert calls == {("fragments", "b/empty"): 1}


async def test_one_rpc_of_each_journal_and_none_of_unwanted_ones(client, calls):
    def wanted(info):
        return info.name == "a/two" and ("part", ("1", "2")) in info.labels and info.head == 0

    for fragments, method in ((True, "fragments"), (False, "read")):
        calls.clear()
        found = await list_journals(
            client, options(selector="app=x"), fragments=fragments, wanted=wanted
        )
        assert [info.name for info in found] == ["a/two"]
        assert calls == {(method, "a/two"): 1}
    assert not await list_journals(
        client, options(selector="app=x"), fragments=True, wanted=lambda info: False
    )


async def test_what_is_not_there_is_named(client):
    missing = [f"c/no-{number}" for number in range(7)]
    with pytest.raises(pb.ConfigurationError) as raised:
        await list_journals(
            client, options(journals=",".join(["a/one", *missing])), fragments=False
        )
    assert str(raised.value) == (
        "JOURNAL_NOT_FOUND: option 'journals': there's no 'c/no-0', 'c/no-1',"
        " 'c/no-2', 'c/no-3', 'c/no-4' and 2 more"
    )
    for given, text in (
        ({"selector": "app=y"}, "selector 'app=y'"),
        ({"prefix": "zz"}, "prefix 'zz'"),
    ):
        with pytest.raises(pb.ConfigurationError, match=f"{text} matches no journal"):
            await list_journals(client, options(**given), fragments=True)
        assert await list_journals(client, options(**given), fragments=True, allow_none=True) == []
    found = await list_journals(
        client, options(journals="a/one,c/no-0"), fragments=False, allow_none=True
    )
    assert [info.name for info in found] == ["a/one"]


async def test_a_journal_is_deleted_or_suspended_while_it_is_listed(client, monkeypatch):
    real = client.context.rpc.list_fragments
    refusals = [pb.Status.JOURNAL_NOT_FOUND, pb.Status.SUSPENDED]

    async def list_fragments(request):
        if request.journal != "a/two":
            return await real(request)
        listed = (await client.list("name=a/two")).journals[0]
        if refusals[0] == pb.Status.JOURNAL_NOT_FOUND:
            change = pb.ApplyRequest.Change(delete="a/two", expect_mod_revision=listed.mod_revision)
        else:
            listed.spec.suspend.level = pb.JournalSpec.Suspend.FULL
            listed.spec.suspend.offset = 7
            change = pb.ApplyRequest.Change(
                upsert=listed.spec, expect_mod_revision=listed.mod_revision
            )
        await client.apply([change])
        return await real(request)

    monkeypatch.setattr(client.context.rpc, "list_fragments", list_fragments)
    refusals.reverse()
    _, two = await list_journals(client, options(prefix="a/"), fragments=True)
    assert (two.name, two.head, two.earliest) == ("a/two", 7, 7)

    listed = (await client.list("name=a/two")).journals[0]
    listed.spec.ClearField("suspend")
    await client.apply(
        [pb.ApplyRequest.Change(upsert=listed.spec, expect_mod_revision=listed.mod_revision)]
    )
    refusals.reverse()
    (one,) = await list_journals(client, options(prefix="a/"), fragments=True)
    assert one.name == "a/one"


async def test_a_named_journal_is_deleted_while_it_is_listed(client, monkeypatch):
    real = client.context.rpc.list_fragments

    async def list_fragments(request):
        await client.apply([pb.ApplyRequest.Change(delete="a/one", expect_mod_revision=-1)])
        return await real(request)

    monkeypatch.setattr(client.context.rpc, "list_fragments", list_fragments)
    with pytest.raises(pb.ConfigurationError, match="there's no 'a/one'"):
        await list_journals(client, options(journals="a/one"), fragments=True)


async def test_a_journal_which_cannot_be_read(client):
    spec = journal_spec("d/write-only")
    spec.flags = pb.JournalSpec.Flag.O_WRONLY
    await create_journals(client, spec)
    with pytest.raises(pb.NotAllowedError):
        await list_journals(client, options(prefix="d/"), fragments=True)


async def test_fragments_of_a_time(client, gazette_broker, tmp_path):
    await create_journals(client, journal_spec("e/stored", stores=["file:///"]))
    await client.append("e/stored", b"old\n")
    await gazette_broker.flush("e/stored")
    await gazette_broker.refresh("e/stored")
    (stored,) = await list_journals(client, options(prefix="e/"), fragments=True)
    (fragment,) = stored.fragments
    assert fragment.mod_time > 0
    for later, begin in ((0, 0), (1, 4)):
        (info,) = await list_journals(
            client,
            options(prefix="e/"),
            fragments=True,
            begin_mod_time=fragment.mod_time + later,
        )
        assert (info.head, info.earliest) == (4, begin)
    await client.append("e/stored", b"new\n")
    (info,) = await list_journals(
        client, options(prefix="e/"), fragments=True, begin_mod_time=fragment.mod_time + 1
    )
    assert (info.head, info.fragments) == (8, (FragmentInfo(4, 8),))


async def test_an_option_tells_the_content_type(client):
    for given, content_types in (
        ({}, [NDJSON, ""]),
        ({"format": "csv"}, ["text/csv", "text/csv"]),
        ({"format": "ndjson"}, [NDJSON, NDJSON]),
        ({"format": "raw"}, [NDJSON, ""]),
    ):
        selected = options(journals="a/one,b/empty", **given)
        found = await list_journals(client, selected, fragments=True)
        assert [info.content_type for info in found] == content_types
