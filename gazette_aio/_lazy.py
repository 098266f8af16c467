"""Names that packages import at their first use."""

from __future__ import annotations

import dis
import importlib
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType


def at_first_use(namespace: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of the calling package, which imports names at first use.

    These are the names that the package imports `if TYPE_CHECKING:`.

    Args:
        namespace: `globals()` of the package, which keeps the values.
    """
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    modules = imported_names(frame.f_back.f_code)

    def import_name(name: str) -> Any:
        if (module := modules.get(name)) is None:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(module), name)
        return value

    def all_names() -> list[str]:
        return sorted({*namespace, *modules})

    return import_name, all_names


def imported_names(package: CodeType) -> dict[str, str]:
    """Return the module of each name that a package imports, if only for type checkers.

    The compiled package is read: programs may be shipped without sources.
    """
    modules: dict[str, str] = {}
    module = ""
    for step in dis.get_instructions(package):
        if step.opname == "IMPORT_NAME":
            module = step.argval
        elif step.opname == "IMPORT_FROM":
            modules[step.argval] = module
    return modules
