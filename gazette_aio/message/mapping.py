"""Mappings, which choose the journal of a published message.

A mapping is a callable, plain or async, which takes a message, and returns the name and the content
type of a journal. The mappings of this module choose among listed partitions of a topic. Modulo and
rendezvous mappings choose exactly the partitions of Gazette's own mappings.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, cast

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import EmptyListResponseError

T = TypeVar("T")
P = ParamSpec("P")
Target = tuple[str, str]
"""Journal name and content type."""
Mapping = Callable[[T], Target | Awaitable[Target]]
"""Returns the journal of a message, and its content type: a plain or async function."""
PartitionsFunc = Callable[[], pb.ListResponse | None]
"""Returns the listed partitions, or None if they're not known yet.

Callers must not modify the listing. It should return the same object until the listing changes:
mappings cache what they derive from it.
"""
KeyFunc = Callable[P, bytes | Iterable[bytes]]
"""Returns the mapping key of a message, its only parameter. Parts are hashed as one key.

It's generic by its parameters, as type checkers infer no message type for those of a `lambda`.
"""
_AnyKey = Callable[[Any], bytes | Iterable[bytes]]


def fnv1a32(data: bytes, state: int = 0x811C9DC5) -> int:
    """Return the 32-bit FNV-1a hash of `data`, continuing from `state`."""
    for byte in data:
        state = ((state ^ byte) * 0x01000193) & 0xFFFFFFFF
    return state


def random_mapping(
    partitions: PartitionsFunc, *, rng: random.Random | None = None
) -> Callable[[Any], Target]:
    """Return a mapping to a uniformly random partition.

    Without partitions, the mapping raises EmptyListResponseError.
    """
    choose = (rng or random.Random()).randrange  # noqa: S311 - only balances load.
    table = _Partitions(partitions)

    def mapping(_message: Any, /) -> Target:
        targets = table.targets()
        return targets[choose(len(targets))]

    return mapping


def modulo_mapping(key: KeyFunc[P], partitions: PartitionsFunc) -> Callable[P, Target]:
    """Return a mapping by the hash of a key, modulo the number of partitions.

    All keys move when partitions are added. Without partitions, the mapping raises
    EmptyListResponseError, and doesn't call `key`.
    """
    table = _Partitions(partitions)
    key_of = cast("_AnyKey", key)

    def mapping(message: Any, /) -> Target:
        targets = table.targets()
        return targets[_hash_key(key_of(message)) % len(targets)]

    return cast("Callable[P, Target]", mapping)


def rendezvous_mapping(
    key: KeyFunc[P],
    partitions: PartitionsFunc,
    *,
    weight: Literal["gazette", "mix32"] = "gazette",
) -> Callable[P, Target]:
    """Return a mapping by rendezvous hashing: few keys move when partitions are added or removed.

    Without partitions, the mapping raises EmptyListResponseError, and doesn't call `key`.

    Args:
        key: Key function.
        partitions: Returns the partitions.
        weight: `gazette` chooses the same partitions as publishers in other languages. It's badly
            skewed where partition names share a prefix: the largest of 16 may have half of all
            keys. `mix32` is balanced, for topics where all publishers use it.
    """
    table = _Partitions(partitions)
    key_of = cast("_AnyKey", key)
    mixed = weight == "mix32"

    def mapping(message: Any, /) -> Target:
        targets = table.targets()
        hashed = _hash_key(key_of(message))
        best, best_weight = 0, 0
        for index, name_hash in enumerate(table.name_hashes()):
            candidate = hashed ^ name_hash
            if mixed:
                candidate = _mix32(candidate)
            if candidate > best_weight:
                best, best_weight = index, candidate
        return targets[best]

    return cast("Callable[P, Target]", mapping)


def _hash_key(key: bytes | Iterable[bytes]) -> int:
    if isinstance(key, (bytes, bytearray, memoryview)):
        return fnv1a32(bytes(key))
    state = 0x811C9DC5
    try:
        for part in key:
            state = fnv1a32(part, state)
    except TypeError as error:
        kind = type(key).__name__
        raise TypeError(
            f"key: expected bytes, not {kind}: encode it, as by str.encode()"
        ) from error
    return state


def _mix32(value: int) -> int:
    # Source: finalizer of MurmurHash3.
    value = ((value ^ value >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ value >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ value >> 16


class _Partitions:
    """Targets and name hashes of a listing, cached until the listing is another object."""

    def __init__(self, partitions: PartitionsFunc) -> None:
        if not callable(partitions):
            _refuse_partitions(partitions)
        self._partitions = partitions
        self._listing: pb.ListResponse | None = None
        self._targets: list[Target] = []
        self._hashes: list[int] | None = None

    def targets(self) -> list[Target]:
        listing = self._partitions()
        # Invariant: compared by identity; the reference held keeps the id from being reused.
        if listing is not self._listing:
            if not (listing is None or hasattr(listing, "journals")):
                _refuse_partitions(listing)
            self._targets = [] if listing is None else [_target(j.spec) for j in listing.journals]
            self._listing = listing
            self._hashes = None
        if not self._targets:
            raise EmptyListResponseError("empty ListResponse: no journal matches the partitions")
        return self._targets

    def name_hashes(self) -> list[int]:
        hashes = self._hashes
        if hashes is None:
            hashes = self._hashes = [fnv1a32(name.encode()) for name, _ in self._targets]
        return hashes


def _refuse_partitions(given: object) -> NoReturn:
    text = "partitions: expected a plain function that returns a ListResponse"
    raise TypeError(f"{text}, such as `lambda: listing`, not {type(given).__name__}")


class ListedTarget(tuple[str, str]):
    """Target whose content type is that of the listed journal."""

    __slots__ = ()


def _target(spec: pb.JournalSpec) -> Target:
    return ListedTarget((spec.name, content_type_of(spec)))


def content_type_of(spec: pb.JournalSpec) -> str:
    """Return the first value of the content-type label of `spec`, or an empty string."""
    return pb.value_of(spec.labels, pb.CONTENT_TYPE)
