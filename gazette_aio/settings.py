"""Files of settings, which Gazette's own programs read as well, and how they're printed."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from gazette_aio.protocol.go.ini import ini_line, parse_ini

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import click

    from gazette_aio.protocol.go.ini import IniLine

_SECRETS: Final = ("auth-keys", "auth-token", "password")
_KEYS: Final = {
    "specs": "SpecsPath",
    "from": "FromUnix",
    "to": "ToUnix",
    "url-ttl": "SigTTL",
    "label-columns": "Labels",
    "offsets": "OffsetsPath",
    "offsets-out": "OffsetsOutPath",
    "cache.size": "Size",
    "cache.ttl": "TTL",
    "rf": "RF",
    "id": "ID",
    "trusted-ca-file": "TrustedCAFile",
}
"""Keys of Gazette's programs that aren't the names of options."""


def read_settings(file_name: str) -> list[IniLine]:
    """Return the lines of a file in the current directory, else of that in `~/.config/gazette`.

    Raises:
        ConfigurationError: A file can't be read, or isn't an INI file.
    """
    homes = [Path(os.environ[name]) for name in ("HOME", "USERPROFILE") if os.environ.get(name)]
    for directory in (Path(), *(home / ".config" / "gazette" for home in homes)):
        path = directory / file_name
        try:
            return parse_ini(path.read_text("utf-8"), source=str(path))
        except FileNotFoundError:
            continue
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: not UTF-8 at byte {error.start}") from None
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            raise ConfigurationError(str(error)) from None
    return []


def plain(name: str) -> str:
    """Return the name of a setting without what doesn't matter in files: case and separators."""
    return re.sub(r"[-_.]", "", name.lower())


def key_of(name: str) -> str:
    """Return the key of an option in files by its name in its section."""
    return _KEYS.get(name) or "".join(map(str.capitalize, re.split(r"[-.]", name)))


KEYS: Final = {plain(key): plain(name) for name, key in _KEYS.items()}
"""Plain names of options by those of their keys, where these differ."""


def setting_lines(option: click.Option, name: str, given: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a setting: its help, then its value, which is a comment by default.

    Secrets are left out.

    Args:
        option: The option.
        name: Its name in the section.
        given: Its texts; empty if it has its default.
    """
    width = shutil.get_terminal_size().columns
    for line in textwrap.wrap(option.help or "", max(width, 40) - 2):
        yield f"; {line}"
    key = key_of(name)
    if given and name.removeprefix("broker.") in _SECRETS:
        yield f"; {key} is set, and isn't printed"
    elif given:
        yield from (ini_line(key, text) for text in given)
    else:
        yield f"; {ini_line(key, _default(option))}"
    yield ""


def _default(option: click.Option) -> str:
    default = option.default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, (str, int, float)):
        return str(default)
    return ""
