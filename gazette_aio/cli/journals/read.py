"""`gazette-aio journals read`: the content of a journal, or of all journals of a selector."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.fragments import unix_time
from gazette_aio.cli.journals.multi_read import MultiRead, ReadPlan
from gazette_aio.cli.journals.read_offsets import format_offsets, parse_offsets
from gazette_aio.cli.journals.read_outputs import open_output
from gazette_aio.cli.journals.resuming import offsets_saved, until_signalled
from gazette_aio.cli.shell import content_forms
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.cli.shell.output import progress
from gazette_aio.cli.shell.transfer import checked_journal, read_one
from gazette_aio.cli.specs.files import parse_selector, read_text

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
@click.option(
    "--uuid-path",
    default="_meta.uuid",
    show_default=True,
    help="Members on the path to the UUID of a message.",
)
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
    _check(journal, selector, given)
    plan = ReadPlan(
        block=given["block"],
        tail=given["tail"],
        begin_mod_time=given["begin"],
        direct=True if given["file_root"] or connection.cache_size else None,
        form=content_forms.json_line if given["as_json"] else content_forms.plain,
    )
    if given["committed"]:
        source = checked_journal(journal) if journal else parse_selector(selector or "")
        _read_committed(connection, source, plan, given)
    elif journal:
        request = pb.ReadRequest(
            journal=checked_journal(journal),
            offset=given["offset"] or 0,
            end_offset=given["end_offset"] or 0,
            block=plan.block,
            begin_mod_time=plan.begin_mod_time,
        )
        try:
            pb.validate(request)
        except pb.ValidationError as error:
            raise InputError(str(error)) from None
        reading = read_one(connection, request, given["output"], given["file_root"], plan.form)
        asyncio.run(reading)
    else:
        _read_selector(connection, parse_selector(selector or ""), plan, given)


def _check(journal: str | None, selector: str | None, given: dict[str, Any]) -> None:
    if (journal is None) == (selector is None):
        raise click.UsageError("give JOURNAL or --selector")
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


def _read_committed(
    connection: ClientSettings,
    source: str | pb.LabelSelector,
    plan: ReadPlan,
    given: dict[str, Any],
) -> None:
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

    async def read_all() -> None:
        async with connection.open(file_root=given["file_root"]) as client:
            with progress("reading", in_bytes=True) as bar:
                reading = committed_read.CommittedRead(
                    client,
                    source,
                    plan,
                    begin,
                    uuid_path=given["uuid_path"],
                    form=form,
                    progress=bar,
                )
                with offsets_saved(path, given["offsets_out"], reading.checkpoint):
                    await until_signalled(reading.run())

    asyncio.run(read_all())


def _read_selector(
    connection: ClientSettings, selector: pb.LabelSelector, plan: ReadPlan, given: dict[str, Any]
) -> None:
    offsets: dict[str, int] = {}
    if path := given["offsets"]:
        text, source = read_text(path)
        offsets = parse_offsets(text, source=source)
    output: str | None = None if given["output"] == "-" else given["output"]
    is_directory = output is not None and (output.endswith("/") or Path(output).is_dir())
    opening = open_output(None if output is None else Path(output), is_directory=is_directory)

    async def read_all() -> None:
        async with connection.open(file_root=given["file_root"]) as client, opening as opened:
            with progress("reading", in_bytes=True) as bar:
                reading = MultiRead(client, plan, opened, offsets, bar)
                with offsets_saved(path, given["offsets_out"], lambda: format_offsets(offsets)):
                    await until_signalled(reading.run(selector))

    asyncio.run(read_all())
