"""Nested values that must be there: readers read nullable ones, which are checked then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gazette_aio.message.columns.pyarrow_api import pa, pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.message.columns.uuids import Indices


def relaxed(kind: Any) -> Any:
    """Return a type all of whose nested fields are nullable, but for keys of maps."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, relaxed(field.type)) for field in kind])
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            pa.field(key.name, relaxed(key.type), nullable=False),
            pa.field(item.name, relaxed(item.type)),
        )
    if types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, relaxed(kind.value_type)))
    return kind


def missing_values(column: Any, kind: Any) -> Iterator[tuple[str, Indices]]:
    """Iterate the paths of nested fields without a value, and the rows that lack it.

    Args:
        column: Column of the relaxed type.
        kind: Type of the column, which says where nulls may be.
    """
    return _missing(column, kind, "", np.arange(len(column)))


def _missing(column: Any, kind: Any, path: str, rows: Indices) -> Iterator[tuple[str, Indices]]:
    types = pa.types
    if types.is_struct(kind):
        is_there = _validity(column)
        for field, child in zip(kind, column.flatten(), strict=True):
            yield from _missing_child(child, field, f"{path}.{field.name}", rows, is_there)
    elif types.is_map(kind):
        offsets = column.offsets.to_numpy()
        first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        inner = np.repeat(rows, np.diff(offsets))
        is_there = np.ones(size, np.bool_)
        items = column.items.slice(first, size)
        yield from _missing_child(items, kind.item_field, f"{path}.value", inner, is_there)
    elif types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        inner = np.repeat(rows, lengths)
        is_there = np.ones(len(inner), np.bool_)
        yield from _missing_child(column.flatten(), kind.value_field, f"{path}[]", inner, is_there)


def _missing_child(
    child: Any, field: Any, path: str, rows: Indices, is_there: Any
) -> Iterator[tuple[str, Indices]]:
    if not field.nullable and child.null_count:
        found = rows[is_there & ~_validity(child)]
        if len(found):
            yield path, found
    yield from _missing(child, field.type, path, rows)


def _validity(array: Any) -> Any:
    return array.is_valid().to_numpy(zero_copy_only=False)
