"""Names that packages import at their first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def at_first_use(
    namespace: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports names at their first use.

    Args:
        namespace: `globals()` of the package, which keeps the values.
        modules: The module of each name.
    """

    def import_name(name: str) -> Any:
        if (module := modules.get(name)) is None:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(module), name)
        return value

    def all_names() -> list[str]:
        return sorted({*namespace, *modules})

    return import_name, all_names
