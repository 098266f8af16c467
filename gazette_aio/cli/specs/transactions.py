"""Changes of specs in transactions of a limited size, with an account after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError, explain
from gazette_aio.cli.shell.output import print_line
from gazette_aio.cli.specs.files import name_of
from gazette_aio.protocol.status_errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from click.decorators import FC

    from gazette_aio.cli.specs.files import Change
    from gazette_aio.protocol import consumer as pc

    OnApplied = Callable[[Sequence[Change], int], object]
    """Takes the changes of a transaction that was applied, and its revision."""

C = TypeVar("C")

# Etcd accepts 128 operations in a transaction, unless its --max-txn-ops says otherwise.
_DEFAULT_SIZE = 100


def transaction_size_option(command: FC) -> FC:
    """Let a command take the greatest number of changes per transaction, as `max_txn_size`."""
    option = click.option(
        "--max-txn-size",
        "--batch-size",
        "max_txn_size",
        type=click.IntRange(min=0),
        help="Greatest number of changes per transaction (default: 100); 0 applies all in one.",
    )
    return option(command)


async def apply_changes(
    opening: AbstractAsyncContextManager[C],
    apply: Callable[[C, Sequence[Any]], Awaitable[pb.ApplyResponse | pc.ApplyResponse]],
    changes: Sequence[Change],
    size: int | None,
    on_applied: OnApplied | None = None,
) -> int:
    """Apply changes in order by transactions, and return the revision of the last one.

    Args:
        opening: Opens the client.
        apply: Applies the changes of a transaction.
        changes: The changes; at least one.
        size: Greatest number of changes of a transaction; 0 makes one transaction. If it's None,
            several transactions are announced.
        on_applied: Called after each transaction with its changes, and its revision.

    Raises:
        GazetteError: The first transaction failed.
        CommandError: A later one failed. It says which changes are applied, and which aren't.

    Cancellation: aborts — the transactions so far remain.
    """
    count = len(changes)
    step = (_DEFAULT_SIZE if size is None else size) or count
    if size is None and count > step:
        print_line(
            f"gazette-aio: {count} changes in {-(-count // step)} transactions"
            f" of at most {step} (--max-txn-size)",
            err=True,
        )
    applied = revision = 0
    try:
        async with opening as client:
            for applied in range(0, count, step):
                part = changes[applied : applied + step]
                revision = (await apply(client, part)).header.etcd.revision
                if on_applied is not None:
                    on_applied(part, revision)
    except (pb.GazetteError, CommandError) as error:
        if not applied:
            raise
        if isinstance(error, pb.GazetteError):
            error.applied = applied
        raise CommandError(f"{explain(error)}; {_account(changes, applied, step, error)}") from None
    return revision


def _account(changes: Sequence[Change], applied: int, step: int, error: Exception) -> str:
    last = name_of(changes[applied - 1])
    text = f"{applied} of {len(changes)} changes are applied, through {last}"
    left = changes[applied:]
    if not isinstance(error, StatusError | pb.ValidationError):
        # A request without an answer may have had its effect.
        part, left = left[:step], left[step:]
        text += f"; unknown: {len(part)}, from {name_of(part[0])} through {name_of(part[-1])}"
    return f"{text}; not applied: {len(left)}, from {name_of(left[0])} on" if left else text
