"""Listing of the journals which options select.

A listing takes one RPC, and one further RPC per journal: either a listing of fragments, which end
at the write head, or a probe of the write head.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.client import iter_fragments, iter_journals
from gazette_aio.client.reads.head import head_of
from gazette_aio.protocol.well_known import CONTENT_TYPE
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.rows.formats import content_type_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import Selection, SourceOptions
    from gazette_aio.spark.types import Labels

LISTINGS_AT_ONCE: Final = 64
"""Greatest number of concurrent listings of fragments and probes of heads."""

_MOST_NAMED: Final = 5


async def list_journals(
    client: JournalClient,
    options: SourceOptions,
    *,
    fragments: bool,
    wanted: Callable[[JournalInfo], bool] | None = None,
    allow_none: bool = False,
    begin_mod_time: int = 0,
) -> list[JournalInfo]:
    """Return the journals which options select, ordered by name.

    Their content type is that of the option `format`, or of their label. A suspended journal has
    the offset at which it will resume, and no content.

    Args:
        client: Client to use.
        options: Options which select the journals.
        fragments: Whether to list fragments.
        wanted: Returns whether to include a journal, whose head and fragments aren't known yet.
            Other journals cost no RPC.
        allow_none: Whether missing journals are allowed.
        begin_mod_time: Seconds since 1970. Fragments persisted earlier aren't listed; the journal
            then seems to begin after them.

    Raises:
        ConfigurationError: No journal is selected, or a named journal doesn't exist.
        BrokerStatusError: A broker refused, for example because a journal can't be read.
        TransportError: An RPC failed, or no broker answers.

    Cancellation: safe.
    """
    listed: dict[str, JournalInfo] = {}
    request = options.selection.label_selector()
    async with aclosing(iter_journals(client, request)) as journals:
        async for journal in journals:
            listed[journal.spec.name] = _info_of(journal, options)
    if not allow_none:
        check_found(options.selection, listed)

    async def look(info: JournalInfo) -> JournalInfo | None:
        if info.fragments is not None:
            return info
        try:
            if not fragments:
                return replace(info, head=await head_of(client, info.name))
            return await _with_fragments(client, info, begin_mod_time)
        except (pb.JournalNotFoundError, pb.SuspendedError):
            # Race: the journal was deleted or suspended a moment ago. A new listing decides.
            selector = pb.LabelSelector(include=pb.label_set("name", info.name))
            found = (await client.list(selector)).journals
            if not found and not allow_none:
                check_found(options.selection, listed.keys() - {info.name})
            if not found:
                return None
            if (again := _info_of(found[0], options)).fragments is None:
                raise
            return again

    chosen = [info for info in listed.values() if wanted is None or wanted(info)]
    looked = await map_bounded(look, chosen, limit=LISTINGS_AT_ONCE)
    return [info for info in looked if info is not None]


async def _with_fragments(
    client: JournalClient, info: JournalInfo, begin_mod_time: int
) -> JournalInfo:
    request = pb.FragmentsRequest(journal=info.name, begin_mod_time=begin_mod_time)
    async with aclosing(iter_fragments(client, request)) as listed:
        found = tuple(
            [
                FragmentInfo(each.spec.begin, each.spec.end, each.spec.mod_time)
                async for each in listed
            ]
        )
    if begin_mod_time and not found:
        return replace(info, head=await head_of(client, info.name), fragments=())
    head = max((fragment.end for fragment in found), default=0)
    return replace(info, head=head, fragments=found)


def _info_of(journal: pb.ListResponse.Journal, options: SourceOptions) -> JournalInfo:
    """Return a journal whose head isn't known yet, unless it's suspended."""
    spec = journal.spec
    labels: dict[str, list[str]] = {}
    for label in spec.labels.labels:
        labels.setdefault(label.name, []).append(label.value)
    found: Labels = tuple((name, tuple(sorted(values))) for name, values in sorted(labels.items()))
    is_suspended = spec.suspend.level == pb.JournalSpec.Suspend.FULL
    return JournalInfo(
        spec.name,
        spec.suspend.offset if is_suspended else 0,
        content_type_for(options, labels.get(CONTENT_TYPE, [""])[0]),
        found,
        journal.create_revision,
        () if is_suspended else None,
    )


def check_found(selection: Selection, names: Collection[str]) -> None:
    """Raise ConfigurationError unless all named journals, or at least one selected, exist."""
    if missing := [repr(name) for name in selection.journals if name not in names]:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise pb.ConfigurationError(
            f"JOURNAL_NOT_FOUND: option 'journals': there's no {', '.join(missing[:_MOST_NAMED])}"
            f"{more}"
        )
    if not names:
        option, _, value = str(selection).partition("=")
        raise pb.ConfigurationError(f"JOURNAL_NOT_FOUND: {option} {value!r} matches no journal")
