"""Signals that end the process of a member."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from anyio import CancelScope, open_signal_receiver

from gazette_aio.aio.owner import Scope
from gazette_aio.aio.task import OwnedTask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.consumer.service.service import Service

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_HANDLED: Final = 2


class StopSignals(Scope):
    """Handlers of SIGTERM and SIGINT within an async context manager's block.

    A signal during the start of a member cancels `starting`, the scope of the start. After the
    start, the first signal asks other members to take the shards over, and the second one ends the
    member at once. The third one acts as by default.
    """

    def __init__(self) -> None:
        self.starting: CancelScope = CancelScope()
        """Scope of the member's start."""
        self._service: Service | None = None
        self._received = 0
        self._handlers = ExitStack()
        self._watching = OwnedTask()

    def __repr__(self) -> str:
        return f"<StopSignals after {self._received}>"

    async def __aenter__(self) -> Self:
        signals = self._handlers.enter_context(open_signal_receiver(*_SIGNALS))
        self._watching.start(self._watch(signals), "gazette signals of a member")
        return self

    async def _leave(self, error: BaseException | None) -> None:  # noqa: ARG002 - Of the block.
        try:
            await self._watching.aclose()
        finally:
            self._handlers.close()

    def has_started(self, service: Service) -> None:
        """Have signals end a member that has started, also those that came too late before."""
        self._service = service
        for _ in range(self._received):
            service.exit_gracefully()

    async def _watch(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for _ in signals:
            self._received += 1
            if self._received == _HANDLED:
                self._handlers.close()
            if self._service is None:
                self.starting.cancel()
            else:
                self._service.exit_gracefully()
            if self._received == _HANDLED:
                return
