"""`gazette-aio journals append`: a file as one append, or its records, mapped to journals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.records import RecordSplitter
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import CommandError, InputError, explain
from gazette_aio.cli.shell.input import input_chunks
from gazette_aio.cli.shell.output import json_option, print_result, progress
from gazette_aio.cli.shell.quantities import counted
from gazette_aio.cli.specs.selection import select_for_file
from gazette_aio.client import StrictAppendService
from gazette_aio.message.framing import FixedFraming, NDJSONFraming
from gazette_aio.message.mapping import modulo_mapping, random_mapping, rendezvous_mapping

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gazette_aio.cli.specs.selection import Selection
    from gazette_aio.client import AppendService, AsyncAppend
    from gazette_aio.message.mapping import PartitionsFunc

_PATH = click.Path(dir_okay=False, allow_dash=True)
_SPOOLED_BYTES = 1 << 20
_MAPPINGS = ["random", "modulo", "rendezvous", "direct"]


def _key(key: bytes) -> bytes:
    return key


def _mapping(name: str, partitions: PartitionsFunc) -> Callable[[bytes], str]:
    """Return a function of a record's key, which returns the name of a journal."""
    match name:
        case "random":
            mapping = random_mapping(partitions)
        case "modulo":
            mapping = modulo_mapping(_key, partitions)
        case "rendezvous":
            mapping = rendezvous_mapping(_key, partitions)
        case _:
            return _direct_mapping(partitions)
    return lambda key: mapping(key)[0]


def _direct_mapping(partitions: PartitionsFunc) -> Callable[[bytes], str]:
    known: pb.ListResponse | None = None
    names: frozenset[str] = frozenset()

    def mapped(key: bytes) -> str:
        nonlocal known, names
        listing = partitions()
        if listing is not known:
            known = listing
            names = frozenset(item.spec.name for item in listing.journals) if listing else names
        name = key.decode("utf-8", "backslashreplace")
        if name not in names:
            raise CommandError(f"journal {name!r} isn't one of the selector")
        return name

    return mapped


def writing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take what it writes from where to where: arguments of `select_for_file()`.

    It also takes `as_json` and `connection`.
    """
    for option in (
        connection_options,
        json_option(),
        click.option("-l", "--selector", help="Label selector of the journals to write to."),
        click.argument("file", type=_PATH, required=False),
        click.argument("journal", required=False),
    ):
        command = option(command)
    return command


@click.command()
@click.option("-i", "--input", "input_", type=_PATH, help="The same as FILE.")
@click.option(
    "-f",
    "--framing",
    type=click.Choice(["none", "lines", "fixed"]),
    default="none",
    show_default=True,
    help="Framing of the records of the input.",
)
@click.option(
    "-m",
    "--mapping",
    type=click.Choice(_MAPPINGS),
    default="random",
    show_default=True,
    help="How records are mapped to journals. Except for random, a key stands before each record, "
    "in the same framing; for direct, it's the name of the journal.",
)
@click.option("--base64", is_flag=True, help="Keys of lines are base64.")
@click.option(
    "--offset",
    type=click.IntRange(min=1),
    help="Append to JOURNAL only if this is its write head.",
)
@writing_options
def append(
    connection: ClientSettings,
    journal: str | None,
    file: str | None,
    selector: str | None,
    input_: str | None,
    *,
    framing: str,
    mapping: str,
    base64: bool,
    offset: int | None,
    as_json: bool,
) -> None:
    """Append FILE (default: stdin) to JOURNAL, all of it or nothing.

    With a selector, the whole input is appended to a random journal of the selector. With
    --framing, each record is mapped to a journal, and appended as soon as it's read. Records of a
    journal keep their order.
    """
    selection, file = select_for_file(journal, file, selector)
    if file is not None and input_ is not None:
        raise click.UsageError("give FILE or --input, but not both")
    path = file or input_ or "-"
    keyed = mapping != "random"
    if framing == "none" and keyed:
        raise InputError("--framing none goes with --mapping random only")
    if base64 and (framing != "lines" or not keyed):
        raise InputError("--base64 needs --framing lines, and a mapping other than random")
    if selection.names and framing != "none":
        raise InputError("--framing needs --selector")
    if offset is not None and not selection.names:
        raise InputError("--offset needs JOURNAL")
    if framing == "none":
        [chosen] = selection.names or [_random_journal(connection, selection)]
        _append_whole(connection, chosen, path, offset, as_json=as_json)
        return
    record_framing = NDJSONFraming() if framing == "lines" else FixedFraming()
    splitter = RecordSplitter(record_framing, keyed=keyed, base64_keys=base64)
    appended = asyncio.run(_append_records(connection, selection, path, splitter, mapping))
    text = (
        f"appended {counted(appended.records, 'record')} of {counted(appended.bytes, 'byte')} "
        f"to {counted(appended.journals, 'journal')}"
    )
    print_result(dataclasses.asdict(appended), text, as_json=as_json)


def _random_journal(connection: ClientSettings, selection: Selection) -> str:
    journals = connection.run(lambda client: selection.journals(client, some=True))
    return random.choice(journals).spec.name  # noqa: S311 - Nobody has to guess it.


def _append_whole(
    connection: ClientSettings, journal: str, path: str, offset: int | None, *, as_json: bool
) -> None:
    """Append a file, all of it or nothing, and print its offsets."""
    request = pb.AppendRequest(journal=journal, offset=offset or 0)
    stdin = contextlib.nullcontext(sys.stdin.buffer)
    with stdin if path == "-" else Path(path).open("rb") as source:
        if path != "-" and Path(path).is_file():
            commit = connection.run(lambda client: client.append(request, source)).commit
        else:
            # All is read before anything is sent: a slow input would block other appends.
            with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES) as spool:
                shutil.copyfileobj(source, spool)
                commit = connection.run(lambda client: client.append(request, spool)).commit
    result = {"journal": commit.journal, "begin": commit.begin, "end": commit.end}
    size = counted(commit.end - commit.begin, "byte")
    text = f"{commit.journal}: appended {size} at {commit.begin}"
    print_result(result, text, as_json=as_json)


@dataclasses.dataclass(slots=True)
class _Appended:
    records: int = 0
    bytes: int = 0
    journals: int = 0


async def _append_records(
    connection: ClientSettings,
    selection: Selection,
    path: str,
    splitter: RecordSplitter,
    mapping: str,
) -> _Appended:
    size = 0
    async with appending(connection, selection, "appended", "record") as ongoing:
        journal_of = _mapping(mapping, ongoing.partitions)
        with progress("appending", in_bytes=True) as bar:
            async for chunk in input_chunks(path):
                for record in splitter.feed(chunk):
                    request = pb.AppendRequest(journal=journal_of(record.key))
                    handle = await ongoing.appends.start_append(request)
                    handle.write(record.content)
                    handle.release()
                    ongoing.add(handle)
                    size += len(record.content)
                bar.advance(len(chunk))
            splitter.end()
    return _Appended(ongoing.count, size, len(ongoing.latest))


@dataclasses.dataclass(slots=True)
class Appending:
    """Appends to journals of a selection.

    Args:
        appends: Service of the appends.
        partitions: Returns the listing of the journals.
    """

    appends: AppendService
    partitions: PartitionsFunc
    latest: dict[str, AsyncAppend] = dataclasses.field(default_factory=dict)
    """Latest append of each journal."""
    count: int = 0

    def add(self, handle: AsyncAppend) -> None:
        """Count an append, which is awaited at the end."""
        self.latest[handle.request.journal] = handle
        self.count += 1


@contextlib.asynccontextmanager
async def appending(
    connection: ClientSettings, selection: Selection, done: str, unit: str
) -> AsyncGenerator[Appending]:
    """Let the block append to journals, and await its appends: none succeeds after a failed one.

    Args:
        connection: Connection to the broker.
        selection: The journals.
        done: `appended` or `published`.
        unit: What an append has: `record` or `message`.

    Raises:
        CommandError: A journal is missing; or something failed after an append of the block. It
            says how many there were.
        GazetteError: No append was begun.

    Cancellation: aborts — appends may be written.
    """
    ongoing: Appending | None = None
    failed: list[BaseException] = []
    try:
        async with (
            connection.open() as client,
            StrictAppendService(client) as appends,
            client.watch(selection.selector) as journals,
        ):
            await journals.ready()
            listing = journals.list()
            found = listing.journals if listing else ()
            selection.require((each.spec.name for each in found), some=True)
            ongoing = Appending(appends, journals.list)
            try:
                yield ongoing
            finally:
                results = await asyncio.gather(*ongoing.latest.values(), return_exceptions=True)
                failed += [each for each in results if isinstance(each, BaseException)]
            for error in failed:
                raise error
    except (pb.GazetteError, CommandError, InputError, OSError) as error:
        if ongoing is None or not ongoing.count:
            raise
        count = f"{'at most ' if failed else ''}{counted(ongoing.count, unit)}"
        raise CommandError(f"{explain(error)}; {done} before: {count}") from None
