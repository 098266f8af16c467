"""pyarrow without its stubs, which are wrong about much that's used here."""

from __future__ import annotations

from importlib import import_module
from typing import Any

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
pj: Any = import_module("pyarrow.json")
