"""`gazette-aio journals apply` and `edit`."""

from __future__ import annotations

from typing import Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.specs.commands import (
    Specs,
    apply_file,
    apply_options,
    edit_options,
    edit_selected,
)
from gazette_aio.client import JournalClient


def journal_specs(connection: ClientSettings) -> Specs:
    """Return how specs of journals are read, listed and applied."""
    return Specs(
        kind="journal",
        load=pb.load_journal_space,
        dump=lambda listing: pb.dump_journal_space(pb.Node.from_list_response(listing)),
        open=connection.open,
        fetch=JournalClient.list,
        check=_check,
        send=JournalClient.apply,
    )


async def _check(request: pb.ApplyRequest) -> None:
    for change in request.changes:
        # Each transaction would check only its own changes.
        if change.HasField("upsert"):
            pb.validate_journal(change.upsert.name, allow_parent=False)


@click.command()
@apply_options
@connection_options
def apply(connection: ClientSettings, **given: Any) -> None:
    """Apply the journal space of a YAML FILE (default: stdin)."""
    apply_file(journal_specs(connection), **given)


@click.command()
@edit_options("journal")
@connection_options
def edit(connection: ClientSettings, **given: Any) -> None:
    """Edit journals in $GAZ_EDITOR, $EDITOR or vi, and apply those that were changed.

    If the journals can't be applied, the editor opens again and shows the reason. To give up, don't
    change the text, or empty it. To delete a journal, add `delete: true`.
    """
    edit_selected(journal_specs(connection), **given)
