"""Fragment stores, and whether they're healthy."""

from __future__ import annotations

from gazette_aio.broker.stores.base import Listed, Store
from gazette_aio.broker.stores.file_store import FileStore
from gazette_aio.broker.stores.health import StoreHealth, StoreRegistry

__all__ = ["FileStore", "Listed", "Store", "StoreHealth", "StoreRegistry"]
