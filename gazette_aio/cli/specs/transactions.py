"""Changes of specs in transactions of a limited size, with an account after a failure."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError, explain
from gazette_aio.cli.shell.output import print_line
from gazette_aio.cli.specs.files import name_of
from gazette_aio.protocol.status_errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from click.decorators import FC

    from gazette_aio.cli.specs.files import Change


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


class Transactions:
    """Changes, applied in order by transactions.

    Args:
        changes: The changes; at least one.
        size: Greatest number of changes of a transaction; 0 makes one transaction. If it's None,
            several transactions are announced.
        on_applied: Called after each transaction with its changes, and its revision.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        size: int | None,
        on_applied: Callable[[Sequence[Change], int], object] | None = None,
    ) -> None:
        self._changes = changes
        self._size = (_DEFAULT_SIZE if size is None else size) or len(changes)
        self._is_announced = size is None
        self._on_applied = on_applied
        self._applied = 0

    async def run(self, apply: Callable[[Sequence[Change]], Awaitable[int]]) -> int:
        """Apply all changes, and return the revision of the last transaction.

        Args:
            apply: Applies the changes of a transaction, and returns its revision.

        Raises:
            GazetteError: A transaction failed. The transactions before it remain.

        Cancellation: aborts — the transactions so far remain.
        """
        revision = 0
        if self._is_announced and (count := len(self._changes)) > self._size:
            print_line(
                f"gazette-aio: {count} changes in {-(-count // self._size)} transactions"
                f" of at most {self._size} (--max-txn-size)",
                err=True,
            )
        while self._applied < len(self._changes):
            part = self._part()
            revision = await apply(part)
            self._applied += len(part)
            if self._on_applied is not None:
                self._on_applied(part, revision)
        return revision

    @contextmanager
    def accounted(self) -> Generator[None]:
        """Convert a failure within the context to a CommandError, if some changes are applied.

        Raises:
            CommandError: The failure, the changes that are applied, and the changes that aren't.
        """
        try:
            yield
        except (pb.GazetteError, CommandError) as error:
            if not self._applied:
                raise
            if isinstance(error, pb.GazetteError):
                error.applied = self._applied
            raise CommandError(f"{explain(error)}; {self._account(error)}") from None

    def _account(self, error: Exception) -> str:
        count, applied, part = len(self._changes), self._applied, self._part()
        last = name_of(self._changes[applied - 1])
        text = f"{applied} of {count} changes are applied, through {last}"
        left = self._changes[applied:]
        if not isinstance(error, StatusError | pb.ValidationError):
            # A request without an answer may have had its effect.
            text += f"; unknown: {len(part)}, from {name_of(part[0])} through {name_of(part[-1])}"
            left = left[len(part) :]
        return f"{text}; not applied: {len(left)}, from {name_of(left[0])} on" if left else text

    def _part(self) -> Sequence[Change]:
        return self._changes[self._applied : self._applied + self._size]
