"""`python -m gazette_aio` is `gazette-aio`."""

from __future__ import annotations

from gazette_aio.cli import main

if __name__ == "__main__":
    main()
