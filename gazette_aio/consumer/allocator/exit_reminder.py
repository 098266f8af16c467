"""Reminders in the log of an exiting member: what it waits for, and what ends that."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gazette_aio.consumer.allocator.observed import ObservedGroup

_logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
"""Time after which a wait is logged again if nothing ends it but a change of the group."""
REMINDER_SECONDS: Final = 30.0
"""Time after which any wait is logged again."""


class ExitReminder:
    """Logs the wait of a member for others to take over its shards.

    Args:
        group: The group as the member sees it.
        deadline_seconds: Time after which the member exits anyway; None for no limit.
    """

    def __init__(self, group: ObservedGroup, deadline_seconds: float | None) -> None:
        self._group = group
        self._limit = "" if deadline_seconds is None else f" at most {deadline_seconds:g} s"
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._level: int | None = None  # Highest level of a line about the wait.

    async def run(self) -> None:
        """Log the wait, now and again every 30 s, until cancelled.

        If the member can't leave before the group changes, the reason is logged after 5 s.

        Cancellation: safe.
        """
        self._log_wait(self._obstacle())
        await asyncio.sleep(PATIENCE_SECONDS)
        if obstacle := self._obstacle():
            self._log_wait(obstacle)
        while True:
            await asyncio.sleep(REMINDER_SECONDS)
            self._log_wait(self._obstacle())

    def _obstacle(self) -> str:
        local = self._group.local_member
        if local is None or not local.exiting:
            return ""
        return self._group.allocation.obstacle(local.id)

    def _log_wait(self, obstacle: str) -> None:
        group = self._group
        if not (shards := len(group.local_items)):
            return
        others = sum(
            each.id != group.local and not each.exiting and each.limit > 0
            for each in group.members.values()
        )
        # Members that hand over as usual say so by INFO only.
        is_usual = others and self._level is None
        self._level = logging.INFO if is_usual else logging.WARNING
        _logger.log(
            self._level,
            "member %s#%s exits: it waits%s until other members hold its shards (shards: %d, other "
            "members: %d, waited: %.0f s)%s. A second signal, or call of exit_gracefully(), ends "
            "it at once",
            *group.local,
            self._limit,
            shards,
            others,
            self._clock() - self._began,
            obstacle and f"; {obstacle}",
            extra={"shards": shards, "members": others},
        )

    def ended(self) -> None:
        """Log that others hold the shards, if the wait was logged."""
        if self._level is not None:
            seconds = self._clock() - self._began
            text = "member %s#%s exits: other members hold its shards, after %.1f s"
            _logger.log(self._level, text, *self._group.local, seconds)
