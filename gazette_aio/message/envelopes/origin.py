"""Origin of messages: the specification of their journal, and how its messages are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import gazette_aio.protocol as pb
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.framing import Framing

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Origin:
    """The journal that envelopes were read from. All of its envelopes share one origin."""

    spec: pb.JournalSpec
    """The latest known specification of the journal. It must not be modified."""


@dataclass(frozen=True, eq=False, slots=True)
class JournalFormat(Generic[T]):
    """Format of a journal's messages."""

    journal: str
    """Name of the journal, with its `;meta` suffix if it's read by one."""
    origin: Origin
    """Origin of the journal's envelopes."""
    framing: Framing
    """Splits content into messages."""
    adapter: Adapter[T]
    """Decodes messages."""
