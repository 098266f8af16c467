"""Check that mappings give journals the content types that they have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.message.framing.registry import framing_by_content_type
from gazette_aio.message.mapping import ListedTarget, content_type_of
from gazette_aio.protocol.errors import GazetteError, MappingError, UnrecognizedContentTypeError
from gazette_aio.protocol.journal import encodable, strip_meta

if TYPE_CHECKING:
    from gazette_aio.client import AsyncJournalClient
    from gazette_aio.message.mapping import Target

_LIST_SECONDS: Final = 5.0


class ContentTypes:
    """Content types of journals, which are listed before the first message to each.

    Frames of another content type would make later messages of a journal unreadable.

    Args:
        appends: Service that lists journals.
    """

    def __init__(self, appends: AsyncJournalClient) -> None:
        self._appends = appends
        self._checked: set[Target] = set()

    def is_checked(self, target: Target) -> bool:
        """Whether nothing has to be awaited before messages are published to a target."""
        return target in self._checked or isinstance(target, ListedTarget)

    async def check(self, target: Target) -> None:
        """Raise if a journal has a content type of another framing than its target.

        Journals that can't be listed pass: with a token for appends only, for good; in an outage,
        and before they're created, until the next message.

        Raises:
            MappingError: It has.
            ValidationError: The journal's name can't be encoded.

        Cancellation: safe.
        """
        if self.is_checked(target):
            return
        journal, content_type = target
        name = pb.label_set("name", encodable(strip_meta(journal)))
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                listing = await self._appends.list(pb.LabelSelector(include=name))
        except TimeoutError:
            return
        except GazetteError as error:
            if not error.retryable:
                self._checked.add(target)
            return
        for item in listing.journals:
            actual = content_type_of(item.spec)
            if actual and not _are_framed_alike(actual, content_type):
                raise MappingError(
                    f"the mapping gives {journal} the content type {content_type!r}, and the "
                    f"journal has {actual!r}"
                )
            self._checked.add(target)


def _are_framed_alike(content_type: str, other: str) -> bool:
    try:
        return framing_by_content_type(content_type) is framing_by_content_type(other)
    except UnrecognizedContentTypeError:
        return content_type == other
