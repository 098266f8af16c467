"""Command line: `gazette-aio`, also `python -m gazette_aio`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process, and exit."""
    from gazette_aio.cli.app import run  # noqa: PLC0415 - importing this package stays cheap.

    sys.exit(run(sys.argv[1:]))
