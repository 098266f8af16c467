"""`gazette-aio journals fragments`: fragments of journals, and where they are stored."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click
from google.protobuf.duration_pb2 import Duration

import gazette_aio.protocol as pb
from gazette_aio.aio.batches import in_batches
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.messages import plain_tree_of, prototext
from gazette_aio.cli.shell.output import json_option, print_json, print_table, print_text
from gazette_aio.cli.shell.quantities import age_of, duration, size_of, unix_time
from gazette_aio.cli.specs.selection import selection_options
from gazette_aio.protocol.shown import shown_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from gazette_aio.cli.specs.selection import Selection
    from gazette_aio.client import JournalClient

_SUM_BYTES = 6


@click.command()
@selection_options("journal")
@click.option(
    "-o",
    "--output",
    "--format",
    "output",
    type=click.Choice(["table", "json", "proto"]),
    default="table",
    show_default=True,
    help="Format; JSON has a line for each fragment.",
)
@json_option("The same as `-o json`.")
@click.option(
    "--from",
    "begin",
    default="0",
    callback=unix_time,
    metavar="TIME",
    help="Only fragments stored at or after this time: Unix seconds, or ISO 8601.",
)
@click.option(
    "--to",
    "end",
    default="0",
    callback=unix_time,
    metavar="TIME",
    help="Only fragments stored before this time.",
)
@click.option(
    "--url-ttl",
    callback=duration,
    metavar="DURATION",
    help="Have URLs signed that are valid for so long.",
)
@connection_options
def fragments(
    connection: ClientSettings,
    selection: Selection,
    output: str,
    *,
    begin: int,
    end: int,
    url_ttl: float | None,
    as_json: bool,
) -> None:
    """List the fragments of journals. Suspended journals without fragments are left out."""
    request = pb.FragmentsRequest(begin_mod_time=begin, end_mod_time=end)
    if url_ttl:
        request.signatureTTL.CopyFrom(Duration(nanos=int(url_ttl % 1 * 1e9), seconds=int(url_ttl)))
    asyncio.run(_fragments(connection, selection, request, "json" if as_json else output))


async def _fragments(
    connection: ClientSettings, selection: Selection, request: pb.FragmentsRequest, form: str
) -> None:
    rows: list[tuple[object, ...]] = []
    async with connection.open() as client:
        async for listed in _listings(client, selection, request):
            match form:
                case "json":
                    for each in listed.fragments:
                        print_json(plain_tree_of(each), compact=True)
                case "proto":
                    print_text(prototext(listed))
                case _:
                    signed = request.HasField("signatureTTL")
                    rows += [_row(each, signed=signed) for each in listed.fragments]
    if form == "table":
        header = ("JOURNAL", "OFFSET", "LENGTH", "PERSISTED", "SHA1", "COMPRESSION")
        print_table((*header, "URL") if request.HasField("signatureTTL") else header, rows)


async def _listings(
    client: JournalClient, selection: Selection, request: pb.FragmentsRequest
) -> AsyncIterator[pb.FragmentsResponse]:
    async def list_one(journal: str) -> pb.FragmentsResponse | None:
        of_journal = pb.FragmentsRequest()
        of_journal.CopyFrom(request)
        of_journal.journal = journal
        try:
            return await client.list_fragments(of_journal)
        except pb.SuspendedError:
            return None  # Suspended since it was listed.

    journals = served_names(await selection.journals(client))
    async for listed in in_batches(list_one, journals):
        if listed is not None:
            yield listed


def served_names(journals: Iterable[pb.ListResponse.Journal]) -> list[str]:
    """Return the names of listed journals, except for those that are fully suspended."""
    full = pb.JournalSpec.Suspend.FULL
    return [item.spec.name for item in journals if item.spec.suspend.level != full]


def _row(listed: pb.FragmentsResponse._Fragment, *, signed: bool) -> tuple[object, ...]:
    spec = listed.spec
    stored = age_of(max(time.time() - spec.mod_time, 0)) if spec.mod_time else ""
    row = (
        spec.journal,
        spec.begin,
        size_of(pb.content_length(spec)),
        stored,
        f"{pb.sum_to_digest(spec.sum)[:_SUM_BYTES].hex()}...",
        shown_name(pb.CompressionCodec, spec.compression_codec),
    )
    return (*row, listed.signed_url) if signed else row
