"""Formats of journals: framing and adapter, which follow from the specification of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.message.adapters.base import Adapter, require_adapter
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.message.framing import framing_by_content_type
from gazette_aio.message.mapping import content_type_of
from gazette_aio.protocol.errors import UnrecognizedContentTypeError

if TYPE_CHECKING:
    from gazette_aio.message.adapters.base import AdapterBySpec
    from gazette_aio.message.framing import Framing

T = TypeVar("T")


class JournalFormats(Generic[T]):
    """Determines the formats of journals, and keeps them by journal.

    Args:
        adapter: Adapter of the messages; or a function of the specification of a journal, which
            returns the journal's adapter. It's called once per journal, and again after the
            specification has changed.

    Raises:
        TypeError: `adapter` is neither.
    """

    def __init__(self, adapter: Adapter[T] | AdapterBySpec[T]) -> None:
        if isinstance(adapter, type):
            text = f"adapter: expected an Adapter or a function, not the type {adapter.__name__}"
            raise TypeError(text)
        self.adapter: Adapter[T] | None = None
        """The adapter of all journals, unless it depends on the journal."""
        self._adapter_by_spec: AdapterBySpec[T] | None = None
        if callable(adapter) and not isinstance(adapter, Adapter):
            self._adapter_by_spec = adapter
        else:
            self.adapter = adapter
        self._known: dict[str, JournalFormat[T]] = {}

    def of(self, journal: str, spec: pb.JournalSpec) -> JournalFormat[T]:
        """Return the format of a journal.

        It's the same object as before if neither framing nor adapter has changed. The specification
        of its origin is updated.

        Args:
            journal: Name of the journal, perhaps with a `;meta` suffix.
            spec: Specification of the journal.

        Raises:
            UnrecognizedContentTypeError: The content type has no framing.
            TypeError: The function of the specification returned no adapter.
            Exception: The function of the specification raised it.
        """
        known = self._known.get(journal)
        if known is not None and known.origin.spec == spec:
            return known
        # Part of a listing would keep the whole listing in memory.
        own = pb.JournalSpec()
        own.CopyFrom(spec)
        framing = framing_of(own, journal)
        adapter = self.adapter or self._adapter_of(own, journal)
        if known is not None and known.framing is framing and known.adapter is adapter:
            known.origin.spec = own
        else:
            known = self._known[journal] = JournalFormat(journal, Origin(own), framing, adapter)
        return known

    def _adapter_of(self, spec: pb.JournalSpec, journal: str) -> Adapter[T]:
        assert self._adapter_by_spec is not None
        try:
            adapter = self._adapter_by_spec(spec)
        except Exception as error:
            error.add_note(f"determining the adapter of {journal}")
            raise
        require_adapter(adapter, f"an Adapter of {journal}")
        return adapter


def framing_of(spec: pb.JournalSpec, name: str) -> Framing:
    """Return the framing of a journal's content type.

    Raises:
        UnrecognizedContentTypeError: The content type has no framing.
    """
    try:
        return framing_by_content_type(content_type_of(spec), journal=name)
    except UnrecognizedContentTypeError as error:
        raise UnrecognizedContentTypeError(f"determining framing: {error}", journal=name) from error
