"""Lists of envelopes, with their UUIDs as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.sequencing.columns import UuidColumns

T = TypeVar("T")


class EnvelopeBatch(list[Envelope[T]]):
    """Envelopes of one journal, in delivery order."""

    __slots__ = ()

    @property
    def messages(self) -> list[T]:
        """New list of the messages alone."""
        return [envelope.message for envelope in self]

    @property
    def columns(self) -> UuidColumns:
        """Producers, clocks, flags and offsets as numpy arrays. Each call makes new arrays.

        Raises:
            ConfigurationError: If numpy isn't installed.
        """
        try:
            from gazette_aio.message.sequencing.columns import UuidColumns  # noqa: PLC0415
        except ImportError as error:
            text = "columns of messages take numpy (pip install gazette-aio[arrow])"
            raise ConfigurationError(text) from error
        return UuidColumns.of(cast("list[Envelope[object]]", self))
