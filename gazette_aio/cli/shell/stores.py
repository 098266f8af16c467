"""Removal of fragments from their stores by a command itself."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.output import json_option, print_json, print_line, print_table
from gazette_aio.cli.shell.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_aio.broker.stores import FragmentStore


@dataclasses.dataclass
class Pruned:
    """Fragments of a journal, and those that were removed, or would be."""

    fragments: int = 0
    bytes: int = 0
    pruned_fragments: int = 0
    pruned_bytes: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    """Reasons why fragments couldn't be removed."""

    def fail(self, reason: str, *, is_denied: bool) -> None:  # noqa: ARG002 - Some results count it.
        """Take why a fragment couldn't be removed, and whether its store denies it."""
        self.failed.append(reason)


class Pruning:
    """Removes fragments from stores, each of which is opened once.

    Args:
        file_root: Root of `file` URLs, or None.
        origins: S3 servers that stores may name.
        dry_run: Whether to remove nothing.
    """

    def __init__(self, file_root: Path | None, origins: Sequence[str], *, dry_run: bool) -> None:
        self._file_root = file_root
        self._origins = frozenset(origins)
        self._dry_run = dry_run
        self._opened: dict[str, FragmentStore | None] = {}

    @property
    def nothing_removed(self) -> str:
        """Text that begins the reason why nothing is removed."""
        return f"nothing {'would be' if self._dry_run else 'was'} removed"

    def open(self, url: str) -> None:
        """Open the store of a URL, unless nothing is removed.

        Raises:
            CommandError: The URL has the scheme `file`, and there's no file root. If nothing is
                removed, that's said on stderr.
            StoreError: The store can't be opened.
        """
        # Other commands need no broker.
        from gazette_aio.broker.stores.opening import is_remote_store, open_store  # noqa: PLC0415

        if url in self._opened:
            return
        if self._file_root is None and not is_remote_store(url):
            needed = f"store {url}: it needs --file-root or $BROKER_FILE_ROOT"
            if not self._dry_run:
                raise CommandError(f"{self.nothing_removed} of {needed}")
            print_line(f"gazette-aio: {self.nothing_removed} of {needed}", err=True)
        root = self._file_root or Path()
        store = None if self._dry_run else open_store(url, root, origins=self._origins)
        self._opened[url] = store

    async def remove(self, result: Pruned, fragment: pb.Fragment) -> None:
        """Remove a fragment from its opened store, and count it in the result of its journal.

        Cancellation: safe — raised after the fragment was removed.
        """
        # Other commands need no broker.
        from gazette_aio.broker.stores.fragment_store import StoreAccessError  # noqa: PLC0415

        path = pb.content_path(fragment)
        try:
            if (store := self._opened[fragment.backing_store]) is not None:
                await in_thread(store.remove, path)
        except FileNotFoundError:
            pass  # Somebody else has removed it, and the broker's listing is older.
        except (OSError, StoreAccessError, pb.StoreError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
            is_denied = isinstance(error, StoreAccessError | PermissionError)
            result.fail(f"{path}: {reason or error}", is_denied=is_denied)
            return
        result.pruned_fragments += 1
        result.pruned_bytes += pb.content_length(fragment)

    def show(
        self, kind: str, results: Mapping[str, Pruned], notes: Sequence[str] = (), *, as_json: bool
    ) -> None:
        """Print results, and raise if fragments couldn't be removed.

        Args:
            kind: `journal` or `log`.
            results: Results by journal.
            notes: A remark on each result, or nothing.
            as_json: Whether to print JSON.

        Raises:
            CommandError: Fragments couldn't be removed.
        """
        if as_json:
            found = [{kind: name, **dataclasses.asdict(each)} for name, each in results.items()]
            print_json({"dry_run": self._dry_run, f"{kind}s": found})
        else:
            what = "PRUNABLE" if self._dry_run else "PRUNED"
            header = (kind.upper(), "FRAGMENTS", "BYTES", what, f"{what} BYTES")
            rows: list[tuple[object, ...]] = [
                (name, each.fragments, each.bytes, each.pruned_fragments, each.pruned_bytes)
                for name, each in results.items()
            ]
            if notes:
                rows = [(*row, note) for row, note in zip(rows, notes, strict=True)]
            print_table((*header, "NOTE") if kind == "log" else header, rows, keep="NOTE")
        if failures := [reason for each in results.values() for reason in each.failed]:
            raise CommandError(
                f"{counted(len(failures), 'fragment')} couldn't be removed: {failures[0]}"
            )


def pruning_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `dry_run`, `file_root`, `origins` (arguments of Pruning), and `as_json`."""
    for option in (
        json_option(),
        click.option(
            "--store-endpoint",
            "origins",
            multiple=True,
            metavar="ORIGIN",
            help="S3 server that stores may name by `endpoint`, as http://host:port; repeatable.",
        ),
        click.option(
            "--file-root",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            envvar="BROKER_FILE_ROOT",
            show_envvar=True,
            help="Root of file:// fragment stores, as of the brokers.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Print what would be removed; remove nothing."
        ),
    ):
        command = option(command)
    return command
