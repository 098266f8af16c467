"""Files of settings, as Gazette's programs read and write them: sections of lines `KEY = VALUE`.

Lines that begin with `;` or `#` are comments. A value in double quotes has the escapes of Go.
"""

from __future__ import annotations

from typing import NamedTuple

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import quote, unquote


class IniLine(NamedTuple):
    """A setting of a file."""

    section: str
    """Name of the section, or empty before the first one."""
    key: str
    value: str
    where: str
    """Name of the file, and number of the line."""


def parse_ini(text: str, *, source: str) -> list[IniLine]:
    """Return the settings of a file, in order; sections and keys may be repeated.

    Args:
        text: Content of the file.
        source: Name of the file in errors.

    Raises:
        ValidationError: A line is invalid.
    """
    lines: list[IniLine] = []
    section = ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        where = f"{source}:{number}"
        if line[0] == "[":
            section = line[1:-1].strip()
            if line[-1] != "]" or not section:
                raise ValidationError(f"{where}: malformed section")
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise ValidationError(f"{where}: expected KEY = VALUE")
        value = value.strip()
        if value.startswith('"'):
            try:
                value = unquote(value)
            except ValidationError:
                raise ValidationError(f"{where}: malformed string") from None
        lines.append(IniLine(section, key.strip(), value, where))
    return lines


def ini_line(key: str, value: str) -> str:
    """Return the line of a setting as `parse_ini()` reads it: in quotes, if there's any need."""
    quoted = quote(value)
    is_plain = quoted[1:-1] == value == value.strip()
    return f"{key} = {value if is_plain else quoted}".rstrip()
