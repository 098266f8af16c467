"""`python -m gazette_aio.broker` is `gazette-aio serve`."""

from __future__ import annotations

import sys

from gazette_aio.cli.serve import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
