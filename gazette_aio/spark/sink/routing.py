"""Choice of journals for the rows of a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

import gazette_aio.protocol as pb
from gazette_aio.message.columns.pyarrow_api import pa, pc
from gazette_aio.message.mapping import modulo_mapping, rendezvous_mapping
from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from gazette_aio.spark.rows.formats import key_reader_of
from gazette_aio.spark.sink.rows import is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from pyarrow import RecordBatch

    from gazette_aio.message.mapping import Target
    from gazette_aio.spark.options import SinkOptions
    from gazette_aio.spark.rows.keys import KeyReader
    from gazette_aio.spark.sink.rows import SinkColumns

    Rows = range | list[int]

_MOST_KEYS: Final = 1 << 16
"""Greatest number of keys whose targets are cached."""


class Router:
    """Chooses the journals of rows.

    The option `journal` names the journal, or else the column `journal` does, or else a mapping
    chooses among the targets: of keys, exactly as a Publisher's mapping does; or of partitions,
    each of which goes to one journal.

    Args:
        options: Options of the sink.
        columns: Columns of the rows.
        targets: Journals which the options select, in the order of their listing.
        choose: Returns random numbers below a limit (first argument), for rows without keys.
        partition: Number of Spark's partition of the rows.

    Raises:
        ConfigurationError: Neither options nor columns decide the journals.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        targets: Sequence[Target],
        choose: Callable[[int, int], NDArray[np.int64]],
        partition: int = 0,
    ) -> None:
        check_routing(options, columns)
        self._is_fixed = options.journal is not None
        self._commit_journal = options.commit_journal
        self._is_restricted = bool(options.selection)
        self._targets = list(targets)
        if options.mapping == "partition":
            self._targets = [targets[partition % len(targets)]]
        self._content_types = dict(targets)
        self._by_column = None if self._is_fixed else columns.journal
        self._key_name = f"column {options.key_column or 'key'!r}"
        self._choose = choose
        self._keys_of: Callable[[RecordBatch], Any] | None = None
        self._map: Callable[[bytes], Target] | None = None
        self._mapped: dict[bytes, Target] = {}
        if (
            self._by_column is None
            and not self._is_fixed
            and (mapping := _mapping(options, columns))
        ):
            self._keys_of = _keys_of(options, columns, self._targets)
            listing = _listing(self._targets)
            make = modulo_mapping if mapping == "modulo" else rendezvous_mapping
            self._map = make(_identity, lambda: listing)

    def unknown(self, batch: RecordBatch) -> list[str]:
        """Return journals which rows name, and whose content types aren't known yet.

        Raises:
            ValidationError: A row names the commit journal.
        """
        if self._by_column is None:
            return []
        names = pc.unique(batch.column(self._by_column)).to_pylist()
        if self._commit_journal is not None and self._commit_journal in names:
            raise ValidationError(f"a row names the commit journal {self._commit_journal!r}")
        return [name for name in names if name is not None and name not in self._content_types]

    def add(self, targets: Sequence[Target]) -> None:
        """Add journals which rows may name."""
        self._content_types.update(targets)

    def route(self, batch: RecordBatch) -> dict[Target, Rows]:
        """Return the indices of the rows of each target, in order.

        Raises:
            ValidationError: A row has no journal, an unknown journal, or no key.
        """
        if not (count := batch.num_rows):
            return {}
        if self._by_column is not None:
            names = cast("Any", batch).column(self._by_column)
            return self._grouped(names, f"column {self._by_column!r}", self._named)
        if self._keys_of is not None:
            return self._grouped(self._keys_of(batch), self._key_name, self._chosen)
        if len(self._targets) == 1:
            return {self._targets[0]: range(count)}
        return _group(self._choose(len(self._targets), count), self._targets)

    def _grouped(
        self, column: Any, name: str, target_of: Callable[[Any], Target]
    ) -> dict[Target, Rows]:
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise ValidationError(f"row {row}, {name}: the value is null")
        encoded = pc.dictionary_encode(column)
        distinct: dict[Target, int] = {}
        codes = [
            distinct.setdefault(target_of(value), len(distinct))
            for value in encoded.dictionary.to_pylist()
        ]
        numbers = np.asarray(codes, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
        return _group(numbers, list(distinct))

    def _named(self, name: str) -> Target:
        content_type = self._content_types.get(name)
        if content_type is None:
            reason = ", which options don't select" if self._is_restricted else ""
            raise ValidationError(f"JOURNAL_NOT_FOUND: a row names journal {name!r}{reason}")
        return name, content_type

    def _chosen(self, value: str | bytes) -> Target:
        key = value.encode() if isinstance(value, str) else value
        target = self._mapped.get(key)
        if target is None:
            assert self._map is not None
            if len(self._mapped) >= _MOST_KEYS:
                self._mapped.clear()
            target = self._mapped[key] = self._map(key)
        return target


def check_routing(options: SinkOptions, columns: SinkColumns) -> None:
    """Raise ConfigurationError unless options and columns decide the journals of rows."""
    for name, value in (("mapping", options.mapping), ("keyColumn", options.key_column)):
        if columns.journal is not None and value is not None:
            raise ConfigurationError(
                f"{name}={value} contradicts column 'journal', which names the journals"
            )
    if options.journal is None and columns.journal is None:
        if not options.selection:
            raise ConfigurationError(
                "nothing names the journals of rows: expected one of the options journal, selector,"
                " journals and prefix, or a column 'journal'"
            )
        _mapping(options, columns)


def _mapping(options: SinkOptions, columns: SinkColumns) -> str | None:
    """Return the mapping of keys, or None if journals are chosen at random."""
    has_keys = bool(columns.key) or columns.reads_keys
    if options.mapping in ("random", "partition") or (options.mapping is None and not has_keys):
        return None
    if not has_keys:
        raise ConfigurationError(
            f"mapping={options.mapping} needs a column 'key', or option 'keyColumn'"
        )
    return options.mapping or "modulo"


def check_keys(options: SinkOptions, columns: SinkColumns, targets: Sequence[Target]) -> None:
    """Raise ConfigurationError unless keys can be read from whole messages, if they have to be."""
    if columns.reads_keys and _mapping(options, columns) is not None:
        _keys_of(options, columns, targets)


def _keys_of(
    options: SinkOptions, columns: SinkColumns, targets: Sequence[Target]
) -> Callable[[RecordBatch], Any]:
    """Return a function which returns the keys of rows, as an array of text or bytes."""
    if columns.reads_keys:
        content_types = {content_type for _, content_type in targets}
        if len(content_types) > 1:
            raise ConfigurationError(
                "option 'keyColumn': journals of several content types are selected, whose whole"
                " messages can't have a common key"
            )
        read = key_reader_of(options, content_types.pop())
        return lambda batch: _read_keys(batch, columns.value, read)
    name, *path = columns.key

    def keys_of(batch: Any) -> Any:
        column = batch.column(name)
        if path:
            column = pc.struct_field(column, path)
        return column if is_text(column.type) else pc.cast(column, pa.string())

    return keys_of


def _read_keys(batch: Any, value: str | None, read: KeyReader) -> Any:
    frames = batch.column(value).to_pylist()
    keys = [
        None if frame is None else read(frame.encode() if isinstance(frame, str) else frame)
        for frame in frames
    ]
    return pa.array(keys, pa.binary())


def _group(numbers: NDArray[np.int64], targets: list[Target]) -> dict[Target, Rows]:
    """Return the indices of rows by target; `numbers` has the index of each row's target."""
    if len(targets) == 1:
        return {targets[0]: range(len(numbers))}
    order = np.argsort(numbers, kind="stable")
    present, begins = np.unique(numbers[order], return_index=True)
    parts = np.split(order, begins[1:])
    if len(parts) == 1:
        return {targets[int(present[0])]: range(len(numbers))}
    return {
        targets[int(number)]: part.tolist() for number, part in zip(present, parts, strict=True)
    }


def _listing(targets: Sequence[Target]) -> pb.ListResponse:
    listing = pb.ListResponse()
    for name, content_type in targets:
        spec = listing.journals.add().spec
        spec.name = name
        spec.labels.labels.add(name=pb.CONTENT_TYPE, value=content_type)
    return listing


def _identity(key: bytes) -> bytes:
    return key
