"""`gazette-aio journals`: the group of commands. Each command has its own module."""

from __future__ import annotations

import click

from gazette_aio.cli.journals.append import append
from gazette_aio.cli.journals.fragments import fragments
from gazette_aio.cli.journals.heads import reset_head, store_health, suspend
from gazette_aio.cli.journals.listing import list_journals
from gazette_aio.cli.journals.pruning import prune
from gazette_aio.cli.journals.publish import publish
from gazette_aio.cli.journals.read import read
from gazette_aio.cli.journals.specs import apply, edit
from gazette_aio.cli.shell.groups import CommandGroup


@click.group(cls=CommandGroup)
def journals() -> None:
    """List, apply, edit, read, append, publish and look after journals."""


for _command in (
    append,
    apply,
    edit,
    fragments,
    list_journals,
    prune,
    publish,
    read,
    reset_head,
    store_health,
    suspend,
):
    journals.add_command(_command)
