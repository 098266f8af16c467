"""The modules of pyarrow, typed as `Any`: its stubs are wrong about much that is used here."""

from __future__ import annotations

from importlib import import_module
from typing import Any

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
