"""Selectors of prefixes, such as `name:prefix=a/`, with brokers up to v0.99.

Such a broker ignores that a label is a prefix, and takes its value for an exact one. So the client
lists what the rest of the selector matches, and selects among the listed journals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.protocol.journal_spec import label_set_ext
from gazette_aio.protocol.selector import compile_selector, with_name_prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def has_prefixes(selector: pb.LabelSelector) -> bool:
    """Return whether a selector has labels that match values by their prefix."""
    return any(
        label.prefix and label.value
        for part in (selector.include, selector.exclude)
        for label in part.labels
    )


def show_support(journals: Iterable[pb.ListResponse.Journal]) -> bool:
    """Return whether listed journals show that their broker knows prefixes."""
    # Wire: releases know both since v0.100, or neither.
    return any(journal.create_revision for journal in journals)


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


def journal_filter(
    selector: pb.LabelSelector,
) -> Callable[[pb.ListResponse.Journal], bool]:
    """Return a function that tells whether `selector` matches a listed journal."""
    matches = compile_selector(with_name_prefixes(selector))
    return lambda journal: matches(label_set_ext(journal.spec))
