"""Reader of JSON documents as columns, which pyarrow parses."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gazette_aio.message.columnar.documents.conversion import (
    FINITE,
    Converter,
    Parsed,
    bad_value,
    cast_to,
    check_digits,
    convert_elements,
    convert_entries,
    convert_fields,
    convert_values,
    is_text,
    is_text_dictionary,
    parse_keys,
    parse_texts,
)
from gazette_aio.message.columnar.documents.json_checks import LineChecker
from gazette_aio.message.columnar.documents.json_guard import guard, line_list, rebuild
from gazette_aio.message.columnar.documents.json_stamps import StampStripper
from gazette_aio.message.columnar.payloads import Lines, cut_runs
from gazette_aio.message.columnar.pyarrow_api import pa, pj
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.columnar.payloads import Payloads
    from gazette_aio.message.sequencing.columns import Indices

BLOCK_BYTES = 8 << 20  # Parsed at a time.
_PARALLEL_BYTES = 512 << 10  # Of documents. Fewer aren't worth the start of several threads.
_PARALLEL_BLOCKS = 8
_ROW = re.compile(r"\s*in row (\d+)$")

_ParseError = (pa.ArrowInvalid, pa.ArrowCapacityError)


class JSONReader:
    """Reads columns of JSON documents.

    Args:
        fields: Columns to read.
        stamps: Prefix and suffix of UUIDs at the front of documents, which aren't columns.
        use_threads: Parse many documents in Arrow's threads.

    Raises:
        ConfigurationError: A type isn't supported.
    """

    def __init__(
        self, fields: list[Any], *, stamps: tuple[bytes, bytes] | None, use_threads: bool
    ) -> None:
        self._stripper = None if stamps is None else StampStripper(*stamps)
        self.converters: list[Converter | None] = []
        self._fields: list[Any] = []  # As they're parsed.
        map_fields: list[Any] = []
        self._map_places: list[int] = []  # Of columns with maps among all.
        for field in fields:
            try:
                kind, converter = _reading(field.type)
            except TypeError as error:
                text = f"column {field.name!r}: {error} can't be decoded from JSON"
                raise ConfigurationError(text) from None
            if _has_map(kind):
                self._map_places.append(len(self.converters))
                map_fields.append(pa.field(field.name, kind))
            else:
                self._fields.append(pa.field(field.name, kind))
            self.converters.append(converter)
        self._maps = _MapReader(map_fields) if map_fields else None
        self._parse_options = _parse_options(self._fields)
        self._use_threads = use_threads
        self._checker = LineChecker(self._fields)
        line = b"{}\n"
        try:
            self._parse(Lines(pa.py_buffer(line), np.array([0, len(line)], np.int32)))
        except (pa.ArrowException, ValueError) as error:
            raise ConfigurationError(f"columns can't be decoded from JSON: {error}") from error

    def read(self, payloads: Payloads, rows: Indices) -> Parsed:
        """Return the columns of documents at `rows`."""
        errors: dict[int, Exception] = {}
        lines = payloads.take_lines(rows)
        if self._stripper is not None:
            lines = self._stripper.strip(lines)
        lines, positions = guard(lines, errors)
        blocks: list[list[Any]] = []
        failed: dict[int, Exception] = {}
        # Without columns, pyarrow has no rows.
        for begin, end in cut_runs(lines.offsets[1:], BLOCK_BYTES) if self._fields else ():
            block = _slice(lines, begin, end)
            try:
                blocks.append(self._parse(block, use_threads=self._use_threads))
            except _ParseError:
                bad: dict[int, Exception] = {}
                blocks += self._recover(block, bad)
                failed |= {begin + row: error for row, error in bad.items()}
        if failed:
            if positions is None:
                positions = np.arange(lines.rows)
            errors |= {int(positions[row]): error for row, error in failed.items()}
            positions = np.delete(positions, list(failed))
        columns = self._join(blocks)
        wrong: dict[int, Exception] = {}
        if self._maps is not None:
            if failed:
                lines, _ = rebuild(lines, failed)
            found, wrong = self._maps.read(line_list(lines))
            for place, column in zip(self._map_places, found, strict=True):
                columns.insert(place, column)
        return Parsed(columns, positions, errors, wrong)

    def _join(self, blocks: list[list[Any]]) -> list[Any]:
        if len(blocks) == 1:
            return list(blocks[0])
        if not blocks:
            return [pa.array([], field.type) for field in self._fields]
        return [pa.concat_arrays(list(columns)) for columns in zip(*blocks, strict=True)]

    def _parse(self, lines: Lines, *, use_threads: bool = False) -> list[Any]:
        """Return columns of lines that are guarded.

        Raises:
            ArrowInvalid: One of them is bad.
        """
        block_size = lines.data.size + 1
        use_threads = use_threads and block_size > _PARALLEL_BYTES
        if use_threads:
            block_size = max(block_size // _PARALLEL_BLOCKS, int(np.diff(lines.offsets).max())) + 1
        table = pj.read_json(
            pa.BufferReader(lines.data),
            read_options=pj.ReadOptions(use_threads=use_threads, block_size=block_size),
            parse_options=self._parse_options,
        )
        if table.num_rows != lines.rows and self._fields:
            raise pa.ArrowInvalid("more than one document")
        return [_single_chunk(column) for column in table.columns]

    def _recover(self, lines: Lines, errors: dict[int, Exception]) -> list[list[Any]]:
        """Return columns of the good lines, of lines that pyarrow refuses as a whole.

        Args:
            lines: Lines that are guarded.
            errors: Takes errors by the index of their line.
        """
        errors |= self._checker.check(line_list(lines))
        positions = None
        if errors:
            lines, positions = rebuild(lines, errors)
        blocks: list[list[Any]] = []
        runs = [(0, lines.rows)]
        while runs:
            begin, end = runs.pop()
            if begin == end:
                continue
            run = _slice(lines, begin, end)
            try:
                blocks.append(self._parse(run))
                continue
            except _ParseError as error:
                failure = error
            if end - begin == 1:
                row = begin if positions is None else int(positions[begin])
                errors[row] = self._explain(run.data.to_pybytes(), failure)
                continue
            # Syntax errors tell the row, others don't; a bad guess costs no more than time.
            match = _ROW.search(str(failure))
            guess = begin + int(match[1]) if match else end
            if guess < end:
                runs += [(guess + 1, end), (guess, guess + 1), (begin, guess)]
            else:
                middle = (begin + end) // 2
                runs += [(middle, end), (begin, middle)]
        return blocks

    def _explain(self, line: bytes, failure: Exception) -> Exception:
        """Return an error that names the column that a line fails for."""
        text = _ROW.sub("", str(failure)).removeprefix("JSON parse error: ")
        for field in self._fields:
            try:
                self._parse_one(line, field)
            except _ParseError:
                return bad_value(field.name, text)
        return ValueError(text)

    def _parse_one(self, line: bytes, field: Any) -> None:
        pj.read_json(
            pa.BufferReader(line),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(line) + 1),
            parse_options=_parse_options([field]),
        )


class _MapReader:
    """Reads columns with maps, objects of any members, which pyarrow can't read from JSON.

    Documents are parsed one by one, but only the members of these columns.

    Args:
        fields: Columns as they're parsed.
    """

    def __init__(self, fields: list[Any]) -> None:
        self._fields = fields
        self._checker = LineChecker(fields)

    def read(self, lines: list[bytes]) -> tuple[list[Any], dict[int, Exception]]:
        """Return columns of lines, with nulls for bad lines, and the errors of these by index."""
        documents, errors = self._checker.decode(lines)
        for row, document in enumerate(documents):
            if document is None and row not in errors:
                errors[row] = ValueError("text isn't JSON")
        columns: list[Any] = []
        for number, field in enumerate(self._fields):
            name = f"f{number}"
            values = [_plain(getattr(document, name, None)) for document in documents]
            columns.append(convert_values(field.name, values, field.type, errors))
        return columns, errors


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value, builtin_types=(Decimal,))


def _has_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    if not pa.types.is_nested(kind):
        return False
    return any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _parse_options(fields: list[Any]) -> Any:
    return pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")


def _single_chunk(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _reading(kind: Any) -> tuple[Any, Converter | None]:
    """Return the type to parse values as, and the converter to a type of a schema.

    Raises:
        TypeError: The type isn't supported.
    """
    types = pa.types
    if is_text(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return kind, None
    if types.is_decimal(kind):
        return kind, check_digits(kind)
    if types.is_float32(kind) or types.is_float64(kind):
        return kind, FINITE
    if converter := parse_texts(kind):
        return pa.string(), converter
    if is_text_dictionary(kind):
        return pa.string(), cast_to(kind)
    if types.is_struct(kind):
        children = [kind.field(index) for index in range(kind.num_fields)]
        parts = [_reading(child.type) for child in children]
        read = pa.struct(
            [pa.field(c.name, part[0]) for c, part in zip(children, parts, strict=True)]
        )
        converters = [part[1] for part in parts]
        return read, convert_fields(kind, converters) if any(converters) else None
    if types.is_list(kind):
        element, converter = _reading(kind.value_type)
        read = pa.list_(pa.field(kind.value_field.name, element))
        return read, None if converter is None else convert_elements(kind, converter)
    if types.is_map(kind):
        keys = parse_keys(kind.key_type)
        item, items = _reading(kind.item_type)
        key = pa.field(kind.key_field.name, pa.string(), nullable=False)
        read = pa.map_(key, pa.field(kind.item_field.name, item))
        return read, convert_entries(kind, keys, items) if keys or items else None
    raise TypeError(str(kind))


def _slice(lines: Lines, begin: int, end: int) -> Lines:
    if begin == 0 and end == lines.rows:
        return lines
    offsets = lines.offsets[begin : end + 1]
    first = offsets[0]
    return Lines(lines.data.slice(int(first), int(offsets[-1] - first)), offsets - first)
