r"""Comma-separated values: each message is one record, whose quoted fields may span lines.

The dialect is RFC 4180, with `\n` or `\r\n` line ends. Blank lines are skipped, spaces are kept,
and there are no comments. Line ends within quoted fields are content, and stay as they are. The
first record which a decoder reads fixes the number of fields.
"""

from __future__ import annotations

import copy
from typing import Self

from gazette_aio.message.core.plain.splitting import LineSplitter, Refusal
from gazette_aio.message.framing.base import (
    ALL_BYTES,
    DEFAULT_MAX_FRAME_BYTES,
    Frames,
    Framing,
    QueueingDecoder,
)
from gazette_aio.protocol.errors import FrameTooLargeError, FramingError, UnexpectedEOFError
from gazette_aio.protocol.well_known import CONTENT_TYPE_CSV

_QUOTE, _COMMA = b'"', b","
_BLANK_LINES = (b"\n", b"\r\n")
_BARE = 'bare " in non-quoted-field'
_EXTRANEOUS = 'extraneous or missing " in quoted-field'


class CSVFraming(Framing):
    """Framing of `text/csv`.

    Args:
        lenient_eof: Accept a last record without its newline, as Gazette's own reader does. A
            bounded read may then end with part of a record.
        same_width: Refuse records with another number of fields than the first record read, as
            Gazette's own reader does. Which records are refused depends on where reading began.
    """

    content_type = CONTENT_TYPE_CSV
    suffix = b"\n"
    encodes_any = True

    def __init__(self, *, lenient_eof: bool = False, same_width: bool = True) -> None:
        self.lenient_eof = lenient_eof
        self.same_width = same_width

    def encode(self, message: bytes) -> bytes:
        """Return the record `message` with its line end."""
        return message + b"\n"

    def decoder(
        self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> CSVDecoder:
        """Return a decoder of records."""
        return CSVDecoder(
            offset,
            max_frame_bytes=max_frame_bytes,
            lenient_eof=self.lenient_eof,
            same_width=self.same_width,
        )

    def for_ranges(self) -> Self:
        """Return a framing that takes records of any number of fields."""
        framing = copy.copy(self)
        framing.same_width = False
        return framing


class CSVDecoder(QueueingDecoder):
    """Splits content into records. Payloads have no line end."""

    def __init__(
        self,
        offset: int = 0,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        lenient_eof: bool = False,
        same_width: bool = True,
    ) -> None:
        super().__init__(offset, max_frame_bytes)
        self._lines = LineSplitter(offset, max_frame_bytes)
        self._lenient_eof = lenient_eof
        self._same_width = same_width
        self._line = 0  # Number of lines that were read.
        self._field_count = 0
        self._record: RecordParser | None = None
        self._record_bytes = 0  # Including blank lines before the record.
        self._blank_bytes = 0  # Of these lines.
        self._run: list[bytes] = []  # Records which aren't queued yet.
        self._run_ends: list[int] = []
        self._run_begin = offset

    @property
    def buffered(self) -> int:
        """Number of bytes of the unfinished record."""
        return self._record_bytes + self._lines.buffered

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content."""
        self._ended = False
        self._lines.feed(chunk)
        while (found := self._lines.split(ALL_BYTES)) is not None:
            if isinstance(found, Refusal):
                self._refuse_line(found.end - self._tail_offset)
                continue
            for payload in found.payloads:
                self._read_line(payload + b"\n")
        self._queue_run()

    def _read_line(self, line: bytes) -> None:
        """Read a line, and queue the record or error that it completes."""
        self._line += 1
        self._record_bytes += len(line)
        record = self._record
        if record is None:
            if line in _BLANK_LINES:
                self._blank_bytes = self._record_bytes
                return
            record = self._record = RecordParser(self._line)
        is_whole = record.read_line(line, self._line)
        if self._record_bytes - self._blank_bytes > self.max_frame_bytes:
            self._refuse_record()
        elif is_whole:
            self._finish(record)

    def _finish(self, record: RecordParser) -> None:
        if self._same_width and self._field_count == 0:
            self._field_count = len(record.fields)
        elif self._same_width and record.error is None and len(record.fields) != self._field_count:
            record.error = f"record on line {record.line}: wrong number of fields"
        if record.error is not None:
            self._refuse(record.error, "decode", self._record_bytes)
            return
        if not self._run:
            self._run_begin = self._tail_offset
        self._tail_offset += self._record_bytes
        self._run.append(_without_end(bytes(record.source)))
        self._run_ends.append(self._tail_offset)
        self._drop_record()

    def _drop_record(self) -> None:
        self._record = None
        self._record_bytes = 0
        self._blank_bytes = 0

    def _refuse_record(self) -> None:
        text = f"record is longer than {self.max_frame_bytes} bytes"
        self._refuse(text, "too_large", self._record_bytes)

    def _refuse_line(self, size: int) -> None:
        self._line += 1
        self._refuse(f"line is longer than {self.max_frame_bytes} bytes", "too_large", size)

    def _refuse(self, text: str, kind: str, size: int) -> None:
        self._queue_run()
        begin, end = self._tail_offset, self._tail_offset + size
        cls = FrameTooLargeError if kind == "too_large" else FramingError
        self._ready.append(cls(text, begin=begin, end=end, kind=kind))
        self._tail_offset = end
        self._drop_record()

    def _queue_run(self) -> None:
        if self._run:
            self._ready.append(Frames(self._run_begin, self._run, self._run_ends))
            self._run, self._run_ends = [], []

    def end(self) -> None:
        """Declare the end of content."""
        if self._lenient_eof and not self._ended:
            self._finish_leniently()
        self._ended = True

    def _finish_leniently(self) -> None:
        rest_bytes = self._lines.buffered
        rest = self._lines.take_partial()
        if rest is None:
            self._refuse_line(self._record_bytes + rest_bytes)
            return
        done = False
        if rest:
            self._line += 1
            self._record_bytes += len(rest)
            text = rest.removesuffix(b"\r")
            if self._record is None and text:
                self._record = RecordParser(self._line)
            if self._record is not None and text:
                done = self._record.read_line(text, self._line)
        if self._record is not None:
            if self._record_bytes - self._blank_bytes > self.max_frame_bytes:
                self._refuse_record()
                return
            if not done:
                self._record.end()
            self._finish(self._record)
            self._queue_run()
        else:
            self._tail_offset += self._record_bytes
            self._drop_record()

    def jump(self, offset: int) -> int:
        """Continue at `offset`."""
        discarded = self.buffered
        self._lines.jump(offset)
        self._drop_record()
        self._tail_offset = offset
        return discarded

    def _check_end(self) -> None:
        if self._record is not None or self._lines.buffered:
            raise UnexpectedEOFError("unexpected EOF", offset=self._tail_offset)


class RecordParser:
    """Parses the fields of one record, line by line.

    Args:
        line: Number of its first line, from one.
    """

    __slots__ = ("_column", "_field", "_last_line", "error", "fields", "line", "source")

    def __init__(self, line: int) -> None:
        self.line: int = line
        self.fields: list[bytes] = []
        self.error: str | None = None
        self.source: bytearray = bytearray()  # Lines of the record, as they were.
        self._field: bytearray | None = None  # Content of an open quoted field.
        self._last_line = line
        self._column = 1

    def read_line(self, text: bytes, number: int) -> bool:
        r"""Read a line, which ends in `\n` unless content ended; return whether the record ends."""
        self.source += text
        self._last_line = number
        position = 0
        content = _without_end(text)
        if self._field is None and _QUOTE not in text:
            self.fields = content.split(_COMMA)
            return True
        content_end = len(content)
        while True:
            if self._field is None and not text.startswith(_QUOTE, position):
                comma = text.find(_COMMA, position, content_end)
                end = content_end if comma == -1 else comma
                quote = text.find(_QUOTE, position, end)
                if quote != -1:
                    return self._fail(_BARE, quote + 1)
                self.fields.append(text[position:end])
                if comma == -1:
                    return True
                position = comma + 1
                continue
            if self._field is None:
                self._field = bytearray()
                position += 1
            field = self._field
            quote = text.find(_QUOTE, position)
            if quote == -1:
                field += text[position:]
                self._column = content_end + (2 if text.endswith(b"\n") else 1)
                # Content that doesn't end in a newline has ended: no more lines follow.
                return False
            field += text[position:quote]
            position = quote + 1
            if text.startswith(_QUOTE, position):
                field += _QUOTE
                position += 1
            elif text.startswith(_COMMA, position):
                self._close_field()
                position += 1
            elif position == content_end:
                self._close_field()
                return True
            else:
                return self._fail(_EXTRANEOUS, quote + 1)

    def end(self) -> None:
        """Declare that content ended within a quoted field."""
        self._fail(_EXTRANEOUS, self._column)

    def _close_field(self) -> None:
        assert self._field is not None
        self.fields.append(bytes(self._field))
        self._field = None

    def _fail(self, text: str, column: int) -> bool:
        where = f"parse error on line {self._last_line}, column {column}: {text}"
        if self._last_line != self.line:
            where = f"record on line {self.line}; {where}"
        self.error = where
        return True


def _without_end(text: bytes) -> bytes:
    """Return a line, or a record, without its line end."""
    return text.removesuffix(b"\r\n").removesuffix(b"\n")


def parse_record(payload: bytes) -> list[bytes]:
    """Return the fields of one record.

    Raises:
        FramingError: `payload` isn't one record.
    """
    parser = RecordParser(1)
    lines = payload.split(b"\n")
    for number, line in enumerate(lines, 1):
        last = number == len(lines)
        if parser.read_line(line if last else line + b"\n", number):
            if not last and parser.error is None:
                raise FramingError("more than one record")
            break
    else:
        parser.end()
    if parser.error is not None:
        raise FramingError(parser.error)
    return parser.fields


def encode_record(fields: list[bytes]) -> bytes:
    """Return the record of `fields`, without a line end."""
    return _COMMA.join([_encode_field(field) for field in fields])


def _encode_field(field: bytes) -> bytes:
    if not _needs_quotes(field):
        return field
    return _QUOTE + field.replace(_QUOTE, b'""') + _QUOTE


def _needs_quotes(field: bytes) -> bool:
    if not field:
        return False
    if field == b"\\.":
        return True
    if any(special in field for special in (_COMMA, _QUOTE, b"\r", b"\n")):
        return True
    first = field[:4].decode("utf-8", "replace")[0]
    return first.isspace() and first not in "\x1c\x1d\x1e\x1f"
