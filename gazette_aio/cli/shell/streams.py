"""Standard streams that the caller has closed."""

from __future__ import annotations

import os
import sys
from typing import Final

# Opened the wrong way round, so that using them fails. Nobody would read an error of stderr.
_STREAMS: Final = (
    ("stdin", "r", os.O_WRONLY),
    ("stdout", "w", os.O_RDONLY),
    ("stderr", "w", os.O_RDWR),
)


def occupy_closed_streams() -> None:
    """Give closed standard streams a file, whose use raises an OSError.

    Otherwise the next file that is opened would get the number of such a stream, and its content.
    """
    for descriptor, (name, mode, flags) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            _open(descriptor, flags)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def discard_output() -> None:
    """Drop what stdout holds and can't write: the interpreter writes it again at exit."""
    _open(sys.stdout.fileno(), os.O_WRONLY)


def _open(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
