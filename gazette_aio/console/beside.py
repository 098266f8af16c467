"""Console of a process with another server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.console.server import Console
    from gazette_aio.serving.process import Served


class ServedWithConsole:
    """Runs a server, and a console beside it.

    Args:
        served: The server.
        console: The console, which starts after the server and stops before it.
    """

    def __init__(self, served: Served, console: Console) -> None:
        self._served = served
        self._console = console

    async def start(self) -> None:
        """Begin to serve.

        Raises:
            Exception: The error of either `start()`.

        Cancellation: safe, if `stop()` is called.
        """
        await self._served.start()
        await self._console.start()

    def ready(self) -> Mapping[str, object]:
        """Return the members of both ready lines."""
        return {**self._served.ready(), **self._console.ready()}

    async def flush(self) -> None:
        """Flush the server.

        Cancellation: as `flush()` of the server.
        """
        await self._served.flush()

    async def stop(self, grace: float) -> None:
        """Stop both, within `grace` seconds each. Idempotent.

        Cancellation: safe — the server is stopped, too.
        """
        try:
            await self._console.stop(grace)
        finally:
            await self._served.stop(grace)
