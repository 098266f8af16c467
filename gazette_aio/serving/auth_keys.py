"""Keys of a server, from its options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    import os


def read_auth(keys: str | None, path: str | os.PathLike[str] | None) -> pb.KeyedAuth | None:
    """Return the authorizer and verifier of keys, or None without keys. Blocks.

    Args:
        keys: Base64 keys, separated by commas or blanks; empty or None for none.
        path: File of the keys, instead of `keys`.

    Raises:
        ConfigurationError: The file can't be read, or keys are invalid.
    """
    if path is None:
        return pb.KeyedAuth(keys) if keys else None
    try:
        return pb.KeyedAuth(read_keys(path))
    except pb.ConfigurationError as error:
        raise pb.ConfigurationError(f"auth_keys_file {path}: {error}") from None


def read_keys(path: str | os.PathLike[str]) -> str:
    """Return the text of a file of keys. Blocks.

    Raises:
        ConfigurationError: The file can't be read.
    """
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not base64"
        raise pb.ConfigurationError((reason or "can't be read").lower()) from None
