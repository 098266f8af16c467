"""Import of objects which options name."""

from __future__ import annotations

import importlib
from typing import Any

from gazette_aio.protocol.errors import ConfigurationError


def import_object(option: str, reference: str) -> Any:
    """Return the object which an option names as `module:name`.

    Raises:
        ConfigurationError: The object doesn't exist, or its module can't be imported.
    """
    module, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        # Importing a module runs any code.
        text = f"option {option!r}: can't import {reference!r}: {type(error).__name__}: {error}"
        raise ConfigurationError(text) from error
    return found
