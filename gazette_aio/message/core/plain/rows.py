"""Stamping of messages with UUIDs, and columns that become documents."""

from __future__ import annotations

import struct
from binascii import hexlify
from typing import TYPE_CHECKING, Final, TypeAlias

from gazette_aio.message.uuid import MASK_64, build_uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TableColumn: TypeAlias = (
    "tuple[bytes, str, int, int, int, bytes | None, Sequence[bytes], Sequence[TableColumn]]"
)
"""Member of documents: its name in quotes and with a colon, then what its values are.

These are a kind and its parameter (bytes of a number or offset, digits of a second's fraction, or
the scale of decimals), the number of rows, the number of the first row's bit in buffers of bits,
the validity, buffers that begin at the first row, and columns within it. Kind `json` has encoded
values, a line each; it's the only one that the plain form takes.
"""


_SPAN: Final = 0xFFFFFFFF << 4
"""Bits of clocks that are in the first four bytes of their UUIDs."""
_NO_SPAN: Final = 1 << 96
_pack: Final = struct.Struct(">I").pack


class Stamper:
    """Stamps messages with UUIDs of one producer: `head`, UUID, `after`, and the rest."""

    def __init__(
        self, head: bytes, after: bytes, producer: bytes, flags: int, *, text: bool = True
    ) -> None:
        self._head = head
        self._after = after
        self._producer = producer
        self._flags = flags
        self._text = text
        self._base = _NO_SPAN
        self._tail = b""

    def uuid(self, clock: int) -> bytes:
        """Return a UUID."""
        # Hot: UUIDs of seven minutes differ in their first bytes only.
        low = clock - self._base
        if low & ~_SPAN:
            self._base = clock & ~_SPAN
            low = clock - self._base
            uuid = build_uuid(self._producer, self._base, self._flags)
            self._tail = str(uuid)[8:].encode() if self._text else uuid.bytes[4:]
        word = _pack(low >> 4)
        return (hexlify(word) if self._text else word) + self._tail

    def line(self, document: bytes, clock: int, nulls: bool) -> bytes | None:  # noqa: FBT001
        """Return a stamped line.

        None if the document isn't an object with members, on one line, or if `null` is there
        without `nulls`.
        """
        if document[:2] != b'{"' or b"\n" in document or not (nulls or b"null" not in document):
            return None
        return b"".join((self._head, self.uuid(clock), self._after, document[1:], b"\n"))

    def lines(self, lines: bytes, first: int, step: int) -> bytes:
        """Return stamped lines, each of which is an object with members."""
        rests = [line[1:] for line in lines.split(b"\n")]
        rests.pop()
        return b"\n".join([*self.messages(None, rests, first, step), b""])

    def messages(
        self, heads: Sequence[bytes] | None, rests: Sequence[bytes], first: int, step: int
    ) -> list[bytes]:
        """Return stamped messages, of their bytes before the UUID, by default `head`, and after."""
        before: Iterable[bytes] = [self._head] * len(rests) if heads is None else heads
        uuid, after = self.uuid, self._after
        return [
            b"".join((head, uuid(first + number * step & MASK_64), after, rest))
            for number, (head, rest) in enumerate(zip(before, rests, strict=True))
        ]


def count_objects(lines: bytes, nulls: bool) -> int | None:  # noqa: FBT001
    """Return the number of lines of objects with members.

    None if one is something else, or if `null` is there without `nulls`.
    """
    if not nulls and b"null" in lines:
        return None
    split = lines.split(b"\n")
    if split.pop() or not all(line.startswith(b'{"') for line in split):
        return None
    return len(split)


def table_lines(columns: Sequence[TableColumn]) -> bytes | None:
    """Return the rows of columns as lines of JSON; None if JSON can't hold one of the values."""
    members = [
        [key + text for text in buffers[0].split(b"\n")[:-1]] for key, *_, buffers, _ in columns
    ]
    return b"".join([b"{" + b",".join(row) + b"}\n" for row in zip(*members, strict=True)])
