"""Claim rules: changes of specs, and of their stores, that the selector of a token permits.

These rules don't apply to a token without a selector. The holder of another token changes only
journals that the selector matches before and after the change. A spec also decides where the
journal's files are, and mustn't lead to files of journals outside of the selector:

- A store that rewrites paths may lead to any file of the store.
- The holder chooses store and name, so the directory of the journal may be the directory of another
  journal, or be above or below it.

The journal's present stores and path template were set by someone else, and are permitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.protocol.go.text import clean_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gazette_aio.broker.keyspace.keyspace import JournalItem


class Refusal(NamedTuple):
    """Reason why a change is refused."""

    journal: str
    reason: str = ""

    def __str__(self) -> str:
        return f"not authorized to {self.journal}{self.reason and f': {self.reason}'}"


def refusal_of_change(
    change: pb.ApplyRequest.Change,
    item: JournalItem | None,
    visible: Callable[[pb.LabelSet], bool],
) -> Refusal | None:
    """Return the refusal of a change that doesn't depend on other journals, or None.

    Args:
        change: A valid change.
        item: The present journal, or None.
        visible: Whether the token's selector matches labels.
    """
    name = change.upsert.name if change.HasField("upsert") else change.delete
    if item is not None and not visible(item.labels):
        return Refusal(name)
    if change.HasField("upsert"):
        if not visible(pb.label_set_ext(change.upsert)):
            return Refusal(name)
        for url in added_stores(change.upsert, item):
            if pb.parse_fragment_store(url).arguments.get("find"):
                return Refusal(name, "a store that rewrites paths needs a token without selector")
    elif item is None and not visible(pb.label_set_ext(pb.JournalSpec(name=name))):
        return Refusal(name)
    return None


def added_stores(spec: pb.JournalSpec, item: JournalItem | None) -> list[str]:
    """Return the stores of a spec that its journal doesn't have yet."""
    if item is None:
        return list(spec.fragment.stores)
    before = item.spec.fragment
    if spec.fragment.path_postfix_template != before.path_postfix_template:
        return list(spec.fragment.stores)
    return [url for url in spec.fragment.stores if url not in before.stores]


class Directories:
    """Directories of the files of changed journals, which must not meet other journals' files.

    Args:
        file_only: Whether stores of all schemes are below one root.
    """

    def __init__(self, *, file_only: bool) -> None:
        self._file_only = file_only
        self._roots: dict[str, pb.FragmentStoreURL] = {}
        self._added: dict[str, str] = {}
        self._above: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._added)

    def add(self, journal: str, stores: Iterable[str]) -> None:
        """Add the directories of a journal in some stores."""
        for url in stores:
            if directory := self._directory(url, journal):
                self._added[directory] = journal
                self._above.update(dict.fromkeys(_ancestors(directory), journal))

    def meets(self, item: JournalItem) -> str:
        """Return the added journal whose files may be files of `item`, or an empty text."""
        for url in item.spec.fragment.stores:
            directory = self._directory(url, item.name)
            if journal := self._above.get(directory, ""):
                return journal
            for above in _ancestors(directory):
                if journal := self._added.get(above, ""):
                    return journal
        return ""

    def _directory(self, url: str, journal: str) -> str:
        """Return a directory in one spelling for all URLs; empty if it's outside of the store."""
        if (parsed := self._roots.get(url)) is None:
            parsed = self._roots[url] = pb.parse_fragment_store(url)
        try:
            key = parsed.object_key(f"{journal}/")
        except pb.ValidationError:
            return ""
        if self._file_only:
            place = "file"
        elif parsed.scheme == "azure-ad":
            # The same container may be named without its account.
            account, container, *_ = parsed.path[1:].split("/")
            place, key = f"azure:{container}", key[len(account) + len(container) + 2 :]
        elif parsed.scheme in ("s3", "gs"):
            # A server of either scheme may serve the buckets of the other.
            place = f"bucket:{parsed.host}"
        else:
            place = f"{parsed.scheme}:{parsed.host}"
        # Some file systems ignore case.
        return f"{place}/{clean_path(key.lstrip('/'))}".casefold()


def _ancestors(directory: str) -> Iterator[str]:
    """Iterate a directory and the directories above it."""
    at = len(directory)
    while at > 0:
        directory = directory[:at]
        yield directory
        at = directory.rfind("/")
