"""Failures of `apply` and `edit` after some of several transactions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.specs.transactions import apply_changes
from gazette_aio.testing import create_journals, journal_spec

NAMES = ("topic/a", "topic/b", "topic/c", "topic/d", "topic/e")
REFUSED = pb.EtcdTransactionFailedError("apply")
LOST = pb.TransportError("UNAVAILABLE", "reset")


@pytest.fixture
async def topic(gazette_client: Any) -> None:
    specs = (journal_spec(name, labels={"color": "blue"}) for name in NAMES)
    await create_journals(gazette_client, *specs)


@pytest.mark.parametrize(
    ("failing", "error", "account"),
    [
        (
            1,
            REFUSED,
            "2 of 5 changes are applied, through topic/b; not applied: 3, from topic/c on",
        ),
        (
            2,
            REFUSED,
            "4 of 5 changes are applied, through topic/d; not applied: 1, from topic/e on",
        ),
        (
            1,
            LOST,
            (
                "2 of 5 changes are applied, through topic/b; unknown: 2, from topic/c through"
                " topic/d; not applied: 1, from topic/e on"
            ),
        ),
        (
            2,
            LOST,
            "4 of 5 changes are applied, through topic/d; unknown: 1, from topic/e through topic/e",
        ),
    ],
)
async def test_account(failing: int, error: pb.GazetteError, account: str) -> None:
    changes = [pb.ApplyRequest.Change(upsert=pb.JournalSpec(name=name)) for name in NAMES]
    seen: list[tuple[list[str], int]] = []

    async def apply(_client: None, _part: Any) -> pb.ApplyResponse:
        if len(seen) == failing:
            raise error
        etcd = pb.Header.Etcd(revision=10 + len(seen))
        return pb.ApplyResponse(header=pb.Header(etcd=etcd))

    def on_applied(part: Any, revision: int) -> None:
        seen.append(([each.upsert.name for each in part], revision))

    with pytest.raises(CommandError) as caught:
        await apply_changes(nullcontext(), apply, changes, 2, on_applied)

    assert str(caught.value).endswith(account)
    assert "nothing was applied" not in str(caught.value)
    assert seen == [(["topic/a", "topic/b"], 10), (["topic/c", "topic/d"], 11)][:failing]


async def test_the_first_failure_stays_as_it_is() -> None:
    async def apply(_client: None, _part: Any) -> pb.ApplyResponse:
        raise REFUSED

    changes = [pb.ApplyRequest.Change(delete="topic/a")]
    with pytest.raises(pb.EtcdTransactionFailedError):
        await apply_changes(nullcontext(), apply, changes, 0)


async def test_apply_says_what_was_applied(
    broker_cli: Any, gazette_client: Any, topic: None
) -> None:
    listed = await broker_cli("journals", "list", "-o", "yaml")
    other = await broker_cli("journals", "list", "-l", "name=topic/d", "-o", "yaml")
    await broker_cli("journals", "apply", stdin=other.out.replace(b"blue", b"red"))

    changed = listed.out.replace(b"blue", b"green")
    done = await broker_cli("journals", "apply", "--max-txn-size", "2", stdin=changed)

    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith("gazette-aio: a journal exists already, or was changed")
    assert done.err.endswith(
        "2 of 5 changes are applied, through topic/b; not applied: 3, from topic/c on\n"
    )
    journals = (await gazette_client.list()).journals
    colors = {item.spec.name: pb.value_of(item.spec.labels, "color") for item in journals}
    assert list(colors.values()) == ["green", "green", "blue", "red", "blue"]


async def test_many_changes_are_applied_in_several_transactions(
    broker_cli: Any, gazette_client: Any
) -> None:
    items = "".join(f"- {{name: many/{index:03}}}\n" for index in reversed(range(250)))
    common = "replication: 1\nfragment: {length: 1024, compression_codec: NONE, stores: [], refresh_interval: 1m}\n"
    done = await broker_cli("journals", "apply", stdin=f"{common}children:\n{items}".encode())

    assert (done.code, done.err) == (
        0,
        "gazette-aio: 250 changes in 3 transactions of at most 100 (--max-txn-size)\n",
    )
    journals = (await gazette_client.list("name:prefix=many/")).journals
    revisions = [item.mod_revision for item in journals]
    assert [revisions.count(each) for each in sorted({*revisions})] == [100, 100, 50]
