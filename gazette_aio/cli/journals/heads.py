"""`gazette-aio journals reset-head`, `suspend` and `store-health`: care of journals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.batches import in_batches
from gazette_aio.cli.journals.fragments import served_names
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import CommandError, InputError, explain
from gazette_aio.cli.shell.output import json_option, print_json, print_line, print_result, progress
from gazette_aio.cli.specs.selection import selection_options
from gazette_aio.client.reads.head import head_of
from gazette_aio.protocol.shown import shown_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.cli.specs.selection import Selection
    from gazette_aio.client import JournalClient

    Outcome = tuple[str, str, str]
    """Journal, result, and reason of a failure."""

_JSON = json_option("Print a line of JSON by journal.")


@click.command("reset-head")
@selection_options("journal")
@_JSON
@connection_options
def reset_head(connection: ClientSettings, selection: Selection, *, as_json: bool) -> None:
    """Reset the write heads of journals to the end of their fragments, after a disaster.

    If all brokers of a journal are lost at once, new brokers refuse to append to the journal,
    because stored fragments end beyond the write head that the brokers know. This command sets the
    write head to the end of the stored fragments.

    First make sure that all fragments are stored. Otherwise, new appends and fragments that are
    stored later have the same offsets. The command doesn't change journals that are sound.
    Suspended journals remain suspended.
    """
    asyncio.run(_each(connection, selection, _reset_head, as_json=as_json))


async def _reset_head(client: JournalClient, journal: str) -> str:
    head = await head_of(client, journal)
    request = pb.AppendRequest(
        journal=journal, offset=head, suspend=pb.AppendRequest.Suspend.SUSPEND_KEEP
    )
    try:
        response = await client.append(request)
    except pb.WrongAppendOffsetError:
        return "not reset: appended to meanwhile"
    return f"reset to {response.commit.end}"


@click.command()
@selection_options("journal")
@click.option("-f", "--force", is_flag=True, help="Suspend journals with fragments not stored yet.")
@_JSON
@connection_options
def suspend(
    connection: ClientSettings, selection: Selection, *, force: bool, as_json: bool
) -> None:
    """Suspend idle journals, which brokers then serve with one replica or none.

    The next append resumes a journal. A journal with content that isn't stored yet isn't suspended,
    except with `--force`.
    """
    modes = pb.AppendRequest.Suspend
    mode = modes.SUSPEND_NOW if force else modes.SUSPEND_IF_FLUSHED

    async def suspend_one(client: JournalClient, journal: str) -> str:
        try:
            response = await client.append(pb.AppendRequest(journal=journal, suspend=mode))
        except pb.SuspendedError:
            return "SUSPENDED"
        return shown_name(pb.Status, response.status)

    asyncio.run(_each(connection, selection, suspend_one, as_json=as_json))


async def _each(
    connection: ClientSettings,
    selection: Selection,
    call: Callable[[JournalClient, str], Awaitable[str]],
    *,
    as_json: bool,
) -> None:
    """Call a function for each selected journal, print results, and raise if some failed."""
    failures: list[str] = []
    async with connection.open() as client:

        async def outcome(journal: str) -> Outcome:
            try:
                return journal, await call(client, journal), ""
            except pb.BrokerStatusError as error:
                return journal, error.status_name, explain(error)

        journals = served_names(await selection.journals(client))
        with progress("journals", len(journals)) as bar:
            async for journal, result, failure in in_batches(outcome, journals):
                bar.advance(1)
                failures += [failure] if failure else []
                shown = {"journal": journal, "result": result, "failed": bool(failure)}
                print_result(shown, f"{journal}: {result}", as_json=as_json)
    if failures:
        raise CommandError(f"{len(failures)} of {len(journals)} journals failed: {failures[0]}")


@click.command("store-health")
@click.argument("url")
@click.option(
    "--check-delete-prefix",
    metavar="PREFIX",
    help="Also check that files can be deleted below this prefix, which is empty or ends in `/`.",
)
@json_option()
@connection_options
def store_health(
    connection: ClientSettings, url: str, check_delete_prefix: str | None, *, as_json: bool
) -> None:
    """Have a broker check the fragment store of a URL."""
    try:
        pb.parse_fragment_store(url)
    except pb.ValidationError as error:
        raise InputError(str(error)) from None
    response = connection.run(
        lambda client: client.fragment_store_health(url, check_delete_prefix=check_delete_prefix)
    )
    is_healthy = response.status == pb.Status.OK
    if as_json:
        print_json({"store": url, "healthy": is_healthy, "error": response.store_health_error})
    elif is_healthy:
        print_line(f"Fragment store {url} is healthy")
    if not is_healthy:
        raise CommandError(f"fragment store {url} is unhealthy: {response.store_health_error}")
