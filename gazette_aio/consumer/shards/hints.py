"""Hints of a shard in the store of its group: the primary's, and those of past recoveries."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.threads import in_thread
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError, StoreRefusedError
from gazette_aio.consumer.keyspace.operations import Compare, Get, Put
from gazette_aio.consumer.recoverylog import FSM, decode_hints, encode_hints
from gazette_aio.consumer.shards.backoff import retry_seconds
from gazette_aio.consumer.shards.errors import HintsError
from gazette_aio.protocol.consumer import (
    GetHintsResponse,
    hint_backup_keys,
    hint_primary_key,
    recovery_log,
)
from gazette_aio.protocol.errors import GazetteError, RecoveryError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.consumer.allocator.model import Assignment
    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.protocol import Header
    from gazette_aio.protocol.consumer import ShardSpec
    from gazette_aio.protocol.recoverylog import FSMHints

_logger = logging.getLogger(__name__)

LARGE_BYTES: Final = 256 << 10
"""Length of hints from which a warning is logged. Etcd refuses requests beyond 1.5 MiB."""
ATTEMPT_SECONDS: Final = 30.0
"""Seconds within which the store must answer."""


@dataclass(frozen=True, slots=True)
class StoredHints:
    """Hints at the keys of a shard: the primary's first, then backups, the newest first."""

    keys: Sequence[str]
    """Keys of the hints."""
    entries: Sequence[KeyValue | None]
    """Present value of each key."""
    hints: Sequence[FSMHints | None]
    """Hints of each key; None where it has none, or none that can be used."""
    errors: Sequence[GazetteError]
    """Why values can't be used."""

    def response(self, header: Header | None = None) -> GetHintsResponse:
        """Return a response of status OK. Hints that can't be used are left unset.

        Args:
            header: Header of the response.

        Raises:
            HintsError: No hints can be used, though there are some.
        """
        if self.errors and all(hints is None for hints in self.hints):
            raise self.errors[0]
        primary, *backups = (GetHintsResponse.ResponseHints(hints=hints) for hints in self.hints)
        return GetHintsResponse(header=header, primary_hints=primary, backup_hints=backups)


async def fetch_stored_hints(store: KeyValueStore, spec: ShardSpec) -> StoredHints:
    """Read the hints of a shard. A value that can't be used is logged, and costs no other key.

    Args:
        store: Store of the group.
        spec: Spec of the shard.

    Raises:
        HintsError: The store failed.

    Cancellation: safe.
    """
    keys = [hint_primary_key(spec), *hint_backup_keys(spec)]
    try:
        result = await store.transact([], [Get(key) for key in keys])
    except KeyValueStoreError as error:
        raise HintsError(f"fetching ShardSpec.HintKeys: {error}") from error
    return await in_thread(_stored, keys, result.entries, recovery_log(spec))


def _stored(keys: Sequence[str], entries: Sequence[KeyValue | None], log: str) -> StoredHints:
    hints: list[FSMHints | None] = []
    errors: list[GazetteError] = []
    for key, entry in zip(keys, entries, strict=True):
        usable = None
        if entry is not None:
            try:
                usable = _usable(entry.value, log)
            except HintsError as error:
                _logger.warning("hints at %s can't be used: %s", key, error)
                errors.append(error)
        hints.append(usable)
    return StoredHints(keys, entries, hints, errors)


def _usable(value: bytes, log: str) -> FSMHints:
    try:
        hints = decode_hints(value)
    except ValidationError as error:
        form = "json.Unmarshal(hints)" if value[:1] == b"{" else "hints.Unmarshal"
        raise HintsError(f"{form}: {error.__cause__ or error}") from error
    _check_loads(hints)
    if hints.log != log:
        raise HintsError(f"hints.Log {hints.log} != ShardSpec.RecoveryLog {log}")
    return hints


def _check_loads(hints: FSMHints) -> None:
    try:
        FSM(hints)
    except (RecoveryError, ValidationError) as error:
        raise HintsError(f"validating FSMHints: {error}") from error


async def store_recorded_hints(
    store: KeyValueStore, spec: ShardSpec, assignment: Assignment, hints: FSMHints
) -> bool:
    """Store hints of the primary's recorder, unless its assignment has ended.

    A failure is logged: hints are stored again later, and what was stored before serves until then.

    Args:
        store: Store of the group.
        spec: Spec of the shard.
        assignment: Assignment of the primary. Changes of its status don't matter.
        hints: Hints to store. They're checked first: with hints that can't be loaded, the shard
            could never recover.

    Returns:
        Whether they're stored.

    Cancellation: aborts — they may have been stored.
    """
    key = hint_primary_key(spec)
    try:
        value = await in_thread(_encoded, key, hints)
        async with asyncio.timeout(ATTEMPT_SECONDS):
            result = await store.transact([_while_assigned(assignment)], [Put(key, value)])
    except (HintsError, KeyValueStoreError, TimeoutError) as error:
        _logger.warning("failed to store recorded hints at %s: %s", key, _reason(error))
        return False
    return result.succeeded


async def store_recovered_hints(
    store: KeyValueStore, spec: ShardSpec, assignment: Assignment, hints: FSMHints
) -> None:
    """Store hints of a recovery as the first backup, and move earlier ones on.

    It's done once per recovery; failures are logged, and repeated with growing delays. If the
    store refuses the hints for good, as too large ones, or they can't be loaded, that is logged,
    and earlier backups stay.

    Args:
        store: Store of the group.
        spec: Spec of the shard.
        assignment: Assignment of the primary.
        hints: Hints of what was recovered.

    Cancellation: aborts — they may have been stored.
    """
    try:
        value = await in_thread(_encoded, spec.id, hints)
    except HintsError as error:
        _logger.error("recovered hints of %s can't be stored: %s", spec.id, error)  # noqa: TRY400
        return
    attempt = 0
    while True:
        await asyncio.sleep(retry_seconds(attempt))
        attempt += 1
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await _rotate(store, spec, assignment, value)
        except StoreRefusedError as error:
            _logger.error("recovered hints of %s were refused: %s", spec.id, error)  # noqa: TRY400
        except (HintsError, KeyValueStoreError, TimeoutError) as error:
            _logger.warning(
                "failed to store recovered hints of %s (will retry): %s", spec.id, _reason(error)
            )
            continue
        return


async def _rotate(
    store: KeyValueStore, spec: ShardSpec, assignment: Assignment, value: bytes
) -> None:
    stored = await fetch_stored_hints(store, spec)
    compares, puts = rotation(stored.keys[1:], stored.entries[1:], value)
    if not puts:
        return
    result = await store.transact([_while_assigned(assignment), *compares], puts)
    if not result.succeeded:
        raise HintsError("unexpected Etcd transaction failure")


def rotation(
    keys: Sequence[str], entries: Sequence[KeyValue | None], value: bytes
) -> tuple[list[Compare], list[Put]]:
    """Return the transaction that puts `value` at the first key, and moves values on.

    The value of the last key is dropped, unless a key before it is free. If the first key has the
    value already, there's nothing to do: the answer to an earlier attempt got lost.
    """
    compares: list[Compare] = []
    puts: list[Put] = []
    if entries and entries[0] is not None and entries[0].value == value:
        return compares, puts
    for key, entry in zip(keys, entries, strict=True):
        compares.append(Compare.mod_revision(key, entry.mod_revision if entry else 0))
        puts.append(Put(key, value))
        if entry is None:
            break
        value = entry.value
    return compares, puts


def _encoded(key: str, hints: FSMHints) -> bytes:
    _check_loads(hints)
    value = encode_hints(hints)
    if len(value) > LARGE_BYTES:
        _logger.warning("hints of %s are large: %d bytes", key, len(value))
    return value


def _while_assigned(assignment: Assignment) -> Compare:
    return Compare.create_revision(assignment.raw.key, assignment.raw.create_revision)


def _reason(error: Exception) -> object:
    return "the store doesn't answer" if isinstance(error, TimeoutError) else error
