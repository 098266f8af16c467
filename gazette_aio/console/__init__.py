"""Console in the browser: journals of a cluster, on one page.

`guards` and `views` decide, and are pure. `doors` answers requests on a client of the brokers,
`tails` sends new content, and `server` listens, or runs `beside` another server. The page, which
needs no build, is in `page`. Imports `client`, `protocol`, `aio` and `serving`.
"""

from __future__ import annotations

from gazette_aio.console.beside import ServedWithConsole
from gazette_aio.console.server import Console
from gazette_aio.console.tails import TailLimits

__all__ = ["Console", "ServedWithConsole", "TailLimits"]
