"""Messages which are records of comma-separated values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.framing.csv import encode_record, parse_record
from gazette_aio.message.uuid import parse_uuid
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from uuid import UUID


class CSVAdapter:
    """Adapter of records: lists of fields, the UUID's own among them. Made by `csv_adapter()`.

    Fields which aren't UTF-8 keep their bytes as surrogate escapes.
    """

    def __init__(self, columns: int | None, uuid_column: int) -> None:
        if uuid_column < 0 or (columns is not None and uuid_column >= columns):
            raise ConfigurationError(f"invalid UUID column {uuid_column}")
        self._columns = columns
        self._uuid_column = uuid_column

    def decode(self, frame: bytes) -> list[str]:
        """Return the fields of a record."""
        fields = [field.decode("utf-8", "surrogateescape") for field in parse_record(frame)]
        if self._columns is None:
            self._columns = len(fields)
        return fields

    def encode(self, message: list[str], uuid: UUID) -> bytes:
        """Return the record of `message`, whose UUID column is replaced.

        Raises:
            ValidationError: If it has another number of fields than the journal's records.
        """
        columns = len(message)
        if columns != (self._columns or columns):
            raise ValidationError(f"record has {columns} fields (expected {self._columns})")
        if columns <= self._uuid_column:
            raise ValidationError(f"record has {columns} fields, none of which is the UUID's")
        encoded = self._encode(message, uuid)
        self._columns = columns
        return encoded

    def uuid(self, message: list[str]) -> UUID:
        """Return the UUID of a record.

        Raises:
            ValidationError: If it's invalid.
        """
        if len(message) <= self._uuid_column:
            raise ValidationError("fields are empty")
        return parse_uuid(message[self._uuid_column])

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return a record of empty fields, but for the UUID.

        Raises:
            ValidationError: If the number of columns isn't known yet.
        """
        if self._columns is None:
            raise ValidationError("the number of columns isn't known")
        return self._encode([""] * self._columns, uuid)

    def _encode(self, message: list[str], uuid: UUID) -> bytes:
        fields = [field.encode("utf-8", "surrogateescape") for field in message]
        fields[self._uuid_column] = str(uuid).encode()
        return encode_record(fields)


def csv_adapter(*, columns: int | None = None, uuid_column: int = 0) -> CSVAdapter:
    """Return an adapter of CSV records.

    Args:
        columns: Number of fields of each record. By default that of the first record which is
            encoded or decoded.
        uuid_column: Index of the field which holds the UUID as text.

    Raises:
        ConfigurationError: If there's no such column.
    """
    return CSVAdapter(columns, uuid_column)
