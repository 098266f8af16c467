"""`gazette-aio journals read`: the content of a journal, or of all journals of a selector."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.raw_read import RawRead, ReadPlan, json_line, plain
from gazette_aio.cli.journals.read_offsets import parse_offsets
from gazette_aio.cli.journals.read_outputs import open_output
from gazette_aio.cli.journals.resuming import offsets_saved, until_signalled
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.cli.shell.input import uuid_path_option
from gazette_aio.cli.shell.output import progress
from gazette_aio.cli.shell.quantities import unix_time
from gazette_aio.cli.specs.files import read_text
from gazette_aio.cli.specs.selection import select

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.cli.journals.committed_read import CommittedRead
    from gazette_aio.cli.shell.output import Progress
    from gazette_aio.client import JournalClient

    Source = str | pb.LabelSelector
    Opening = Callable[
        [JournalClient, Progress], AbstractAsyncContextManager[RawRead | CommittedRead]
    ]

_SINGLE = ("offset", "end_offset")
_MANY = ("tail", "offsets", "offsets_out")


@click.command()
@click.argument("journal", required=False)
@click.option("-l", "--selector", help="Label selector of the journals to read.")
@click.option(
    "--offset", type=click.IntRange(min=-1), help="First byte of JOURNAL; -1 is the write head."
)
@click.option("--end-offset", type=click.IntRange(min=0), help="Stop before this offset.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    help="Stop after so many committed messages, or lines of raw content.",
)
@click.option(
    "-b",
    "--block",
    is_flag=True,
    help="At the write head, wait for more content instead of stopping.",
)
@click.option(
    "--tail", is_flag=True, help="Begin at write heads, except for journals of --offsets."
)
@click.option(
    "--offsets",
    type=click.Path(dir_okay=False),
    help="File of JSON with the offsets to begin at, or of --offsets-out.",
)
@click.option(
    "--offsets-out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write final offsets to, which may be that of --offsets.",
)
@click.option(
    "-o",
    "--output",
    help="File to write to instead of stdout; or, with a selector, a directory, which exists or "
    "ends in `/`, of a file for each journal.",
)
@click.option(
    "--from",
    "begin",
    default="0",
    callback=unix_time,
    metavar="TIME",
    help="Skip fragments stored before this time: Unix seconds, or ISO 8601.",
)
@click.option(
    "--file-root",
    type=click.Path(exists=True, file_okay=False),
    help="Root of file:// fragment stores, whose files are then read without a broker.",
)
@click.option("--committed", is_flag=True, help="Print committed messages of JSON, each once.")
@uuid_path_option
@click.option(
    "--pretty/--compact",
    default=None,
    help="Whether to indent committed messages. [default: on a terminal]",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a line of JSON with the place of each piece of content, which is base64, or of "
    "each committed message.",
)
@connection_options
def read(
    connection: ClientSettings, journal: str | None, selector: str | None, **given: Any
) -> None:
    """Print the raw content of JOURNAL, or of the journals of a selector.

    The content of one append, or of one stored fragment, isn't interleaved with that of other
    journals. A signal ends a read of a selector, or of committed messages, as write heads do: final
    offsets are written, and the next read can resume there.
    """
    selection = select("journal", () if journal is None else (journal,), selector)
    _check(journal, given)
    plan = ReadPlan(
        block=given["block"],
        tail=given["tail"],
        begin_mod_time=given["begin"],
        direct=True if given["file_root"] or connection.cache_size else None,
        end_offset=given["end_offset"] or 0,
        count=given["count"],
        form=json_line if given["as_json"] else plain,
    )
    source: Source = journal or selection.selector
    reading = (_committed if given["committed"] else _raw)(source, plan, given)
    # Offsets are only those of --offset, so that there's nothing to end properly.
    ends_by_signal = given["committed"] or not journal

    async def read_all() -> None:
        async with connection.open(file_root=given["file_root"]) as client:
            with progress("reading", in_bytes=True) as bar:
                async with reading(client, bar) as opened:
                    with offsets_saved(given["offsets"], given["offsets_out"], opened.checkpoint):
                        work = opened.run()
                        await (until_signalled(work) if ends_by_signal else work)

    asyncio.run(read_all())


def _check(journal: str | None, given: dict[str, Any]) -> None:
    if given["pretty"] and given["as_json"]:
        raise click.UsageError("--pretty doesn't go with --json")
    unfit: list[str] = []
    if given["committed"]:
        unfit += (*_SINGLE, "tail", "output")
    else:
        unfit += _MANY if journal is not None else _SINGLE
    for name in unfit:
        if given[name] not in {None, False}:
            form = "--committed" if given["committed"] else "JOURNAL" if journal else "--selector"
            raise click.UsageError(f"--{name.replace('_', '-')} doesn't go with {form}")


def _committed(source: Source, plan: ReadPlan, given: dict[str, Any]) -> Opening:
    """Return what opens a read of committed messages."""
    # Raw reads need no messages.
    from gazette_aio.cli.journals import committed_read  # noqa: PLC0415

    pretty = sys.stdout.isatty() if given["pretty"] is None else given["pretty"]
    form = committed_read.indented if pretty else committed_read.compact
    if given["as_json"]:
        form = committed_read.json_line
    begin = committed_read.Begin()
    if path := given["offsets"]:
        text, name = read_text(path)
        begin = committed_read.parse_begin(text, source=name)
        if begin.start and plan.begin_mod_time:
            raise click.UsageError(
                f"--from doesn't go with {name}, which has plain offsets, and --committed"
            )

    @asynccontextmanager
    async def opening(client: JournalClient, bar: Progress) -> AsyncGenerator[CommittedRead]:
        yield committed_read.CommittedRead(
            client, source, plan, begin, uuid_path=given["uuid_path"], form=form, progress=bar
        )

    return opening


def _raw(source: Source, plan: ReadPlan, given: dict[str, Any]) -> Opening:
    """Return what opens a read of raw content."""
    offsets: dict[str, int] = {}
    if isinstance(source, str):
        offsets = {source: given["offset"] or 0}
        try:
            pb.validate(plan.request(source, offsets[source], block=plan.block))
        except pb.ValidationError as error:
            raise InputError(str(error)) from None
    elif path := given["offsets"]:
        text, name = read_text(path)
        offsets = parse_offsets(text, source=name)
    output: str | None = None if given["output"] == "-" else given["output"]
    is_directory = (
        not isinstance(source, str)
        and output is not None
        and (output.endswith("/") or Path(output).is_dir())
    )

    @asynccontextmanager
    async def opening(client: JournalClient, bar: Progress) -> AsyncGenerator[RawRead]:
        path = None if output is None else Path(output)
        async with open_output(path, is_directory=is_directory) as opened:
            yield RawRead(client, source, plan, opened, offsets, progress=bar)

    return opening
