"""Brokers up to v0.99, which know neither watches nor selectors of prefixes.

Such a broker answers a watch with a unary listing. It ignores that a label of a selector such as
`name:prefix=a/` is a prefix, and takes its value for an exact one. So the client lists what the
rest of the selector matches, and selects among the listed journals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.protocol.journal_spec import label_set_ext
from gazette_aio.protocol.selector import compile_selector, with_name_prefixes

if TYPE_CHECKING:
    from gazette_aio.client.context import ClientContext


class UnmarkedListingError(pb.UnexpectedEOFError):
    """A watch that isn't resumed ended after its only message, without the end of a snapshot."""

    def __init__(self, listing: pb.ListResponse) -> None:
        self.listing = listing
        super().__init__("unexpected EOF")


async def ignores_prefixes(
    context: ClientContext, selector: pb.LabelSelector, listing: pb.ListResponse
) -> bool:
    """Return whether a selector has prefixes, and the broker that answered ignores them.

    Args:
        context: State of the client.
        selector: The selector.
        listing: What the broker listed first.

    Raises:
        TransportError: The RPC that finds it out failed.

    Cancellation: safe.
    """
    if context.knows_prefixes or not has_prefixes(selector):
        return False
    # Wire: releases know revisions of journals, prefixes and watches since v0.100, or none of them.
    if not any(journal.create_revision for journal in listing.journals):
        # The snapshot of a watch ends with another message, but not a unary listing.
        stream = await context.rpc.list(pb.ListRequest(selector=unmatched(), watch=True))
        try:
            if await stream.receive() is None or await stream.receive() is None:
                return True
        finally:
            await stream.aclose()
    context.knows_prefixes = True
    return False


def has_prefixes(selector: pb.LabelSelector) -> bool:
    """Return whether a selector has labels that match values by their prefix."""
    return any(
        label.prefix and label.value
        for part in (selector.include, selector.exclude)
        for label in part.labels
    )


def unmatched() -> pb.LabelSelector:
    """Return a selector that no journal matches."""
    # No journal both has this name and lacks it.
    name = pb.label_set("name", "watch/resume")
    return pb.LabelSelector(include=name, exclude=name)


def without_prefixes(selector: pb.LabelSelector) -> pb.LabelSelector:
    """Return a selector without prefixes, which matches no fewer journals than `selector`."""
    by_prefix = {label.name for label in selector.include.labels if label.prefix and label.value}
    wider = pb.LabelSelector()
    wider.include.labels.extend(
        label for label in selector.include.labels if label.name not in by_prefix
    )
    wider.exclude.labels.extend(label for label in selector.exclude.labels if not label.prefix)
    return wider


async def select_listed(listing: pb.ListResponse, selector: pb.LabelSelector) -> pb.ListResponse:
    """Return a listing with only those journals that a selector matches. Cancellation: safe."""
    matches = compile_selector(with_name_prefixes(selector))
    selected = pb.ListResponse(status=listing.status, header=listing.header)
    turns = Turns()
    for journal in listing.journals:
        if matches(label_set_ext(journal.spec)):
            selected.journals.append(journal)
        await turns.rest()
    return selected
