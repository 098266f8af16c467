"""Loader of `table_rows`, which needs pyarrow."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.threads import in_thread
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.publishing.encoding import Rows

_ROWS: Final = "gazette_aio.message.publishing.table_rows"


async def rows_of_table(table: Any, adapter: Adapter[Any]) -> Rows:
    """Return the rows of a table which supports the PyCapsule interface of Arrow.

    Cancellation: safe.

    Raises:
        ConfigurationError: pyarrow isn't installed, or the adapter can't make messages of the
            table.
    """
    # Importing takes long, and so may a table which is yet to be computed.
    if _ROWS not in sys.modules:
        try:
            await in_thread(importlib.import_module, _ROWS)
        except ImportError as error:
            text = "tables need pyarrow and numpy (pip install gazette-aio[arrow])"
            raise ConfigurationError(text) from error
    return await in_thread(sys.modules[_ROWS].TableRows, table, adapter)
