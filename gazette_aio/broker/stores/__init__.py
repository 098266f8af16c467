"""Fragment stores, and whether they're healthy."""

from __future__ import annotations

from gazette_aio.broker.stores.base import Listed, Store, StoredFile
from gazette_aio.broker.stores.file_store import FileStore
from gazette_aio.broker.stores.health import StoreHealth
from gazette_aio.broker.stores.object_store import ObjectStore
from gazette_aio.broker.stores.registry import StoreRegistry

__all__ = [
    "FileStore",
    "Listed",
    "ObjectStore",
    "Store",
    "StoreHealth",
    "StoreRegistry",
    "StoredFile",
]
