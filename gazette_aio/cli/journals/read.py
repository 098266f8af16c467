"""`gazette-aio journals read`: the content of a journal, or of all journals of a selector."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.fragments import unix_time
from gazette_aio.cli.journals.multi_read import MultiRead, ReadPlan
from gazette_aio.cli.journals.read_offsets import format_offsets, parse_offsets
from gazette_aio.cli.journals.read_outputs import open_output
from gazette_aio.cli.shell import content_forms
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.cli.shell.output import progress
from gazette_aio.cli.shell.transfer import checked_journal, read_one
from gazette_aio.cli.specs.files import parse_selector, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.cli.journals.read_outputs import Output
    from gazette_aio.client import JournalClient

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
    help="File of JSON with the offsets to begin at.",
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
    journals. Signals end a read of a selector as write heads do, and final offsets are written: the
    next read resumes there.
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
        asyncio.run(_read_committed(connection, source, plan, given))
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
    if journal is not None or given["committed"]:
        unfit += _MANY
    if selector is not None or given["committed"]:
        unfit += _SINGLE
    unfit += ["output"] if given["committed"] else []
    for name in unfit:
        if given[name] not in {None, False}:
            form = "--committed" if given["committed"] else "JOURNAL" if journal else "--selector"
            raise click.UsageError(f"--{name.replace('_', '-')} doesn't go with {form}")


async def _read_committed(
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
    async with connection.open(file_root=given["file_root"]) as client:
        with progress("reading", in_bytes=True) as bar:
            path = given["uuid_path"]
            await committed_read.print_committed(
                client, source, plan, uuid_path=path, form=form, progress=bar
            )


def _read_selector(
    connection: ClientSettings, selector: pb.LabelSelector, plan: ReadPlan, given: dict[str, Any]
) -> None:
    out: Path | None = given["offsets_out"]
    offsets: dict[str, int] = {}
    if path := given["offsets"]:
        text, source = read_text(path)
        offsets = parse_offsets(text, source=source)
        if out is not None and out.exists() and out.samefile(path):
            # A crash is seen by the missing file, and what it had remains.
            out.rename(out.with_name(f"{out.name}.previous"))
    output: str | None = None if given["output"] == "-" else given["output"]
    is_directory = output is not None and (output.endswith("/") or Path(output).is_dir())
    opening = open_output(None if output is None else Path(output), is_directory=is_directory)
    try:
        asyncio.run(
            _read_into(
                connection.open(file_root=given["file_root"]), opening, selector, plan, offsets
            )
        )
    except pb.GazetteError:
        _save(out, offsets)
        raise
    _save(out, offsets)


async def _read_into(
    connecting: AbstractAsyncContextManager[JournalClient],
    opening: AbstractAsyncContextManager[Output],
    selector: pb.LabelSelector,
    plan: ReadPlan,
    offsets: dict[str, int],
) -> None:
    async with connecting as client, opening as output:
        with progress("reading", in_bytes=True) as bar, _stopping() as stopped:
            reading = MultiRead(client, plan, output, offsets, bar)
            await _until(reading.run(selector), stopped)


async def _until(work: Any, stopped: asyncio.Event) -> None:
    """Await work, but cancel it once an event is set."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.wait((task, stopping))
    if not task.cancelled():
        task.result()


@contextmanager
def _stopping() -> Generator[asyncio.Event]:
    """Return an event that the first signal sets; the second one interrupts the process."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop(_number: int, _frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        # Not a handler of the loop, which a full pipe may block.
        loop.call_soon_threadsafe(stopped.set)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before: list[Callable[..., Any] | int | None] = [signal.signal(each, stop) for each in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _save(path: Path | None, offsets: dict[str, int]) -> None:
    if path is None:
        return
    temporary = path.with_name(f"{path.name}.temp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(format_offsets(offsets))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
