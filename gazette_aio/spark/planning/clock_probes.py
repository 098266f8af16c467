"""Ranges of journals which are limited by time, from the clocks where fragments begin."""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol.errors import DataLossError, TransportError
from gazette_aio.spark.planning.clock_search import Clocks, ClockWindow, Probe, next_step
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.reading.scanning import scan_uuids
from gazette_aio.spark.rows.formats import format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange

_logger = logging.getLogger(__name__)

PROBE_BYTES: Final = 8 << 10
"""Bytes of a probe. Longer first messages take further probes."""

MAX_PROBE_BYTES: Final = 2 << 20
"""Bytes after which a fragment without a whole message has no clocks."""

FIRST_MESSAGES: Final = 16
"""Greatest number of messages of a probe whose clocks count, so that one stray clock doesn't."""

_GROWTH: Final = 8
_SEARCHES_AT_ONCE: Final = 16
_PROBE_SECONDS: Final = 10.0
"""Time to wait for the content of a probe, which the query may not need."""

_CLOCK_UNITS: Final = 10_000_000 << 4
"""Units of clocks per second."""


async def narrow_ranges(
    client: JournalClient,
    ranges: Sequence[JournalRange],
    options: SourceOptions,
    clocks_of: Callable[[str], tuple[int | None, int | None]],
) -> list[JournalRange]:
    """Return the parts of ranges which can have messages of a time, possibly empty.

    Each journal takes a few small reads through its broker, of the first messages of fragments.

    Args:
        client: Client to use.
        ranges: The ranges, whose fragments were listed.
        options: Options of the source.
        clocks_of: Returns the least clock of wanted messages of a journal, and the clock after the
            greatest; None for no limit.

    Raises:
        BrokerStatusError: A broker refused a read.

    Cancellation: safe.
    """
    skew = int(options.max_clock_skew * _CLOCK_UNITS)
    # Brokers return exactly the requested bytes, of compressed fragments too.
    brief = replace(
        options,
        io="broker",
        fail_on_data_loss=True,
        fetch_timeout=min(options.fetch_timeout, _PROBE_SECONDS),
    )

    async def narrow(planned: JournalRange) -> JournalRange:
        clocks = clocks_of(planned.journal.name)
        if clocks == (None, None):
            return planned
        if format_of(options, planned.journal.content_type).framing is None:
            return planned
        window = ClockWindow(*clocks, skew)
        known: dict[int, Clocks | None] = {}
        while isinstance(step := next_step(planned, window, known), Probe):
            known[step.begin] = await _first_clocks(client, planned.journal, step, brief)
        return step

    return await map_bounded(narrow, ranges, limit=_SEARCHES_AT_ONCE)


async def _first_clocks(
    client: JournalClient, journal: JournalInfo, probe: Probe, options: SourceOptions
) -> Clocks | None:
    """Return the clocks of the first messages of a fragment, or None if it's unknown."""
    begin, size = probe.begin, PROBE_BYTES
    while True:
        end = min(begin + size, probe.end)
        # An incomplete record at the head is skipped.
        scanned = scan_uuids(
            client,
            journal.name,
            journal.content_type,
            begin,
            end,
            options,
            is_aligned=True,
            head=end,
        )
        try:
            async with aclosing(scanned) as batches:
                async for columns in batches:
                    clocks = columns.clock[columns.clock != 0][:FIRST_MESSAGES]
                    if not len(clocks):
                        return None
                    return Clocks(int(clocks.min()), int(clocks.max()))
        except (DataLossError, TransportError) as error:
            # A read of this fragment raises the error; the query may not need it.
            _logger.debug("probing %s at %d: %s", journal.name, begin, error)
            return None
        if end == probe.end or size >= MAX_PROBE_BYTES:
            return None
        size *= _GROWTH
