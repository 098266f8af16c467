"""Context variables of calls that run elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contextvars import Context

_UNSET: Final = object()


def adopt(context: Context) -> None:
    """Set the variables that changed in `context`, a copy of the present context."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)
