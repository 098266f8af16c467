"""Fragment stores: local directories and buckets, their health, and the threads of their work.

Imports `broker.host`, `aio` and `protocol`.
"""

from __future__ import annotations

from gazette_aio.broker.stores.file_store import FileFragmentStore
from gazette_aio.broker.stores.fragment_store import FragmentStore, Listed, StoredFile
from gazette_aio.broker.stores.handle import StoreHandle
from gazette_aio.broker.stores.object_store import ObjectFragmentStore
from gazette_aio.broker.stores.registry import StoreRegistry
from gazette_aio.broker.stores.verified import VerifiedFiles

__all__ = [
    "FileFragmentStore",
    "FragmentStore",
    "Listed",
    "ObjectFragmentStore",
    "StoreHandle",
    "StoreRegistry",
    "StoredFile",
    "VerifiedFiles",
]
