"""Opening of fragment stores, by the schemes of their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.stores import object_config
from gazette_aio.broker.stores.file_store import FileFragmentStore
from gazette_aio.broker.stores.object_store import ObjectFragmentStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from obstore.store import ObjectStore as Client

    from gazette_aio.broker.stores.fragment_store import FragmentStore


def is_remote_store(url: str, *, file_only: bool = False) -> bool:
    """Return whether operations on a store go over a network.

    Args:
        url: URL of the store.
        file_only: Whether stores of all schemes are kept below the file root.

    Raises:
        ValidationError: The URL isn't valid.
    """
    return pb.parse_fragment_store(url).scheme != "file" and not file_only


def open_store(
    url: str,
    root: Path,
    *,
    origins: frozenset[str],
    files: FileOps | None = None,
    file_only: bool = False,
    sync: bool = True,
    owned_since: float = 0.0,
    open_client: Callable[[pb.FragmentStoreURL], Client] | None = None,
) -> FragmentStore:
    """Return the store of a URL. Nothing is sent, and no file is touched.

    Args:
        url: URL of the store.
        root: File root of `file://` stores.
        origins: Origins that stores may name by their argument `endpoint`.
        files: File operations; those of the operating system by default.
        file_only: Whether stores of all schemes are kept below the root.
        sync: Whether written files are made durable.
        owned_since: Unix time since which nobody else writes below the root, or zero.
        open_client: Returns clients of object stores; None uses `obstore`.

    Raises:
        StoreError: The store can't be used.
        ValidationError: The URL isn't valid.
    """
    if not is_remote_store(url, file_only=file_only):
        return FileFragmentStore(files or FileOps(), root, url, sync=sync, owned_since=owned_since)
    parsed = pb.parse_fragment_store(url)
    object_config.check_destination(parsed, origins)
    object_config.check_installed(parsed.scheme)
    return ObjectFragmentStore(url, open_client or object_config.open_client)
