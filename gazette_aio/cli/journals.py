"""`gazette-aio journals`: the group of commands, each of which has a module."""

from __future__ import annotations

import click

from gazette_aio.cli.groups import CommandGroup
from gazette_aio.cli.journal_append import append
from gazette_aio.cli.journal_fragments import fragments
from gazette_aio.cli.journal_heads import reset_head, store_health, suspend
from gazette_aio.cli.journal_listing import list_journals
from gazette_aio.cli.journal_pruning import prune
from gazette_aio.cli.journal_read import read
from gazette_aio.cli.journal_specs import apply, edit


@click.group(cls=CommandGroup)
def journals() -> None:
    """List, apply, edit, read, append and look after journals."""


for _command in (
    append,
    apply,
    edit,
    fragments,
    list_journals,
    prune,
    read,
    reset_head,
    store_health,
    suspend,
):
    journals.add_command(_command)
