"""Authorization keys of a command: from an option, or a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.serving.auth_keys import read_keys

if TYPE_CHECKING:
    from pathlib import Path


def given_keys(keys: str | None, file: Path | None) -> str:
    """Return the keys of either option, or an empty text. Reads the file, which may be a pipe.

    Raises:
        InputError: Both are given, or the file can't be read.
    """
    if file is None:
        return keys or ""
    if keys:
        raise InputError("give authorization keys, or a file of them, but not both")
    # An empty file isn't the same as no file: requests mustn't be sent without a token.
    try:
        return read_keys(file) or ","
    except pb.ConfigurationError as error:
        raise InputError(f"authorization keys of {file}: {error}") from None


def keyed_auth(keys: str) -> pb.KeyedAuth:
    """Return the authorizer of keys.

    Raises:
        InputError: They're invalid.
    """
    try:
        return pb.KeyedAuth(keys)
    except pb.GazetteError as error:
        raise InputError(f"authorization keys: {error}") from None
