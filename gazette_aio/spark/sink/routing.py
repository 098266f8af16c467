"""Choice of journals for the rows of a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

import gazette_aio.protocol as pb
from gazette_aio.message.columnar.pyarrow_api import pc
from gazette_aio.message.mapping import modulo_mapping, rendezvous_mapping
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from pyarrow import RecordBatch

    from gazette_aio.message.mapping import Target
    from gazette_aio.spark.options import SinkOptions
    from gazette_aio.spark.sink.rows import SinkColumns

    Rows = range | list[int]

_MOST_KEYS: Final = 1 << 16
"""Greatest number of keys whose targets are cached."""


class Router:
    """Chooses the journals of rows.

    The option `journal` names the journal, or else the column `journal` does, or else a mapping of
    keys chooses among the targets, exactly as a Publisher's mapping does.

    Args:
        options: Options of the sink.
        columns: Columns of the rows.
        targets: Journals which the options select, in the order of their listing.
        choose: Returns random numbers below a limit (first argument), for rows without keys.

    Raises:
        ConfigurationError: Neither options nor columns decide the journals.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        targets: Sequence[Target],
        choose: Callable[[int, int], NDArray[np.int64]],
    ) -> None:
        check_routing(options, columns)
        self._is_fixed = options.journal is not None
        self._commit_journal = options.commit_journal
        self._is_restricted = bool(options.selection)
        self._targets = list(targets)
        self._content_types = dict(targets)
        self._by_column = None if self._is_fixed else columns.journal
        self._choose = choose
        self._key: str | None = None
        self._map: Callable[[bytes], Target] | None = None
        self._mapped: dict[bytes, Target] = {}
        if (
            self._by_column is None
            and not self._is_fixed
            and (mapping := _mapping(options, columns))
        ):
            self._key = columns.key
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
            return self._grouped(batch, self._by_column, self._named)
        if self._map is not None:
            assert self._key is not None
            return self._grouped(batch, self._key, self._chosen)
        if len(self._targets) == 1:
            return {self._targets[0]: range(count)}
        return _group(self._choose(len(self._targets), count), self._targets)

    def _grouped(
        self, batch: Any, name: str, target_of: Callable[[Any], Target]
    ) -> dict[Target, Rows]:
        column = batch.column(name)
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise ValidationError(f"row {row}, column {name!r}: the value is null")
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
    if columns.journal is not None and options.mapping is not None:
        raise ConfigurationError(
            f"mapping={options.mapping} contradicts column 'journal', which names the journals"
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
    if options.mapping == "random" or (options.mapping is None and columns.key is None):
        return None
    if columns.key is None:
        raise ConfigurationError(f"mapping={options.mapping} needs a column 'key'")
    return options.mapping or "modulo"


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
