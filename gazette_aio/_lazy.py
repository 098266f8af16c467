"""Names that packages import at their first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def first_use(namespace: dict[str, Any], modules: Mapping[str, str], name: str) -> Any:
    """Import a name of a package, and return its value: for `__getattr__` of the package.

    Args:
        namespace: `globals()` of the package, which keeps the value.
        modules: The module of each name.
        name: The name.

    Raises:
        AttributeError: The package has no such name.
        ImportError: The module can't be imported.
    """
    if (module := modules.get(name)) is None:
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
    value = namespace[name] = getattr(importlib.import_module(module), name)
    return value
