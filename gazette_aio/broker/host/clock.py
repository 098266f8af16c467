"""Clock of a broker: Unix time and timers, which tests can move.

The clock times pulses, flush intervals, refreshes of stores, retries of persisting, health checks,
waits of appends for stores, ends of tokens, and the delay of watches, which is zero while the clock
is frozen. Rates of appends, the grace of a stop, and clients use real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class ManualClock:
    """A clock that tests move. It stands still, or follows another clock until `freeze()`.

    A call returns Unix time in seconds. All methods belong to the thread of the event loop.

    Args:
        start: Unix seconds at which the clock begins; None is the present time.
        follow: Source of Unix seconds to follow, instead of `start`. Timers then follow the event
            loop.

    Example:
        ```python
        clock = ManualClock(start=1_700_000_000)
        async with EmbeddedBroker(clock=clock) as broker:
            clock.advance(60)
            await broker.control.settled()
        ```
    """

    def __init__(
        self, start: float | None = None, *, follow: Callable[[], float] | None = None
    ) -> None:
        self._follow = follow
        self._unix = time.time() if start is None else start
        self._elapsed = 0.0
        self._shift = 0.0
        self._timers: set[Timer] = set()

    def __repr__(self) -> str:
        state = "frozen" if self.is_frozen else "following"
        return f"<ManualClock {self():.3f} {state} timers={len(self._timers)}>"

    def __call__(self) -> float:
        """Return Unix time in seconds."""
        follow = self._follow
        return self._unix if follow is None else follow() + self._shift

    @property
    def is_frozen(self) -> bool:
        """Whether only `advance` moves the clock."""
        return self._follow is None

    def advance(self, seconds: float) -> None:
        """Move the clock forward, which makes timers due.

        Due work begins at the next turn of the event loop; `BrokerControl.settled` waits for it.

        Raises:
            ValueError: `seconds` is negative, or not finite.
        """
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"seconds must be finite and not negative (not {seconds})")
        if self._follow is None:
            self._unix += seconds
            self._elapsed += seconds
        else:
            self._shift += seconds
        self._rearm()

    def freeze(self) -> None:
        """Stop following another clock: from now on, only `advance()` moves this clock."""
        if self._follow is not None:
            self._unix, self._elapsed = self(), self.monotonic()
            self._follow = None
            self._rearm()

    # For the broker

    def monotonic(self) -> float:
        """Return the time of the clock's timers, in seconds."""
        return self._elapsed if self._follow is None else _loop_time() + self._shift

    def loop_time(self, when: float) -> float:
        """Return the loop's time of a time of `monotonic()`, unless the clock is moved.

        The result is infinite for a time that only `advance()` can reach.
        """
        if self._follow is not None:
            return when - self._shift
        return _loop_time() if when <= self._elapsed else math.inf

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call a function at a time of `monotonic`. Always cancel the timer in the end."""
        timer = Timer(self, when, callback)
        self._timers.add(timer)
        timer.arm()
        return timer

    @contextlib.asynccontextmanager
    async def timeout_at(self, when: float) -> AsyncGenerator[None]:
        """Raise TimeoutError within the context at a time of `monotonic()`.

        Cancellation: safe.
        """
        async with asyncio.timeout(None) as scope:
            timer = self.call_at(when, lambda: scope.reschedule(0.0))
            try:
                yield
            finally:
                timer.cancel()

    async def wait(self, event: asyncio.Event, when: float) -> bool:
        """Wait for an event up to a time of `monotonic()`; return whether the event was set.

        Cancellation: safe.
        """
        try:
            async with self.timeout_at(when):
                return await event.wait()
        except TimeoutError:
            return False

    def forget(self, timer: Timer) -> None:
        """Drop a timer."""
        self._timers.discard(timer)

    def _rearm(self) -> None:
        for timer in sorted(self._timers, key=lambda timer: timer.when):
            timer.arm()


class Timer:
    """A call at a time of a clock."""

    __slots__ = ("_callback", "_clock", "_handle", "_loop", "when")

    def __init__(self, clock: ManualClock, when: float, callback: Callable[[], object]) -> None:
        self.when: float = when
        self._clock = clock
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    def arm(self) -> None:
        """Schedule the call in the loop, by the clock's present rate."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        when = self._clock.loop_time(self.when)
        if when <= self._loop.time():
            self._handle = self._loop.call_soon(self._fire)
        elif when < math.inf:
            self._handle = self._loop.call_at(when, self._fire)

    def cancel(self) -> None:
        """Drop the call. Idempotent."""
        self._clock.forget(self)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._clock.forget(self)
        self._callback()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of a clock at which something has to end."""

    clock: ManualClock
    when: float

    @property
    def has_passed(self) -> bool:
        """Whether the time has come."""
        return self.clock.monotonic() >= self.when

    @property
    def loop_time(self) -> float:
        """The same time in the loop's time, unless the clock is moved."""
        return self.clock.loop_time(self.when)

    async def wait(self, event: asyncio.Event) -> bool:
        """Wait for an event up to this time; return whether the event was set.

        Cancellation: safe.
        """
        return await self.clock.wait(event, self.when)


def _loop_time() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
