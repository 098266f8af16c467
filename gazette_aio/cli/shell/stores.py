"""Fragment stores from which a command itself removes fragments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gazette_aio.broker.stores.opening import is_remote_store, open_store
from gazette_aio.cli.shell.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.broker.stores import FragmentStore


class FragmentStores:
    """Fragment stores by URL. Each store is opened once.

    Args:
        file_root: Root of `file` URLs, or None.
        origins: S3 servers that stores may name.
    """

    def __init__(self, file_root: Path | None, origins: Sequence[str]) -> None:
        self._file_root = file_root
        self._origins = frozenset(origins)
        self._opened: dict[str, FragmentStore] = {}

    def open(self, url: str) -> FragmentStore:
        """Return the store of a URL.

        Raises:
            CommandError: The URL has the scheme `file`, and there's no file root.
            StoreError: The store can't be opened.
        """
        store = self._opened.get(url)
        if store is None:
            if self._file_root is None and not is_remote_store(url):
                raise CommandError(
                    f"nothing was removed of store {url}: it needs --file-root or $BROKER_FILE_ROOT"
                )
            store = open_store(url, self._file_root or Path(), origins=self._origins)
            self._opened[url] = store
        return store


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `file_root` and `origins`, the arguments of FragmentStores."""
    command = click.option(
        "--store-endpoint",
        "origins",
        multiple=True,
        metavar="ORIGIN",
        help="S3 server that stores may name by `endpoint`, as http://host:port; repeatable.",
    )(command)
    return click.option(
        "--file-root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        envvar="BROKER_FILE_ROOT",
        show_envvar=True,
        help="Root of file:// fragment stores, as of the brokers.",
    )(command)
