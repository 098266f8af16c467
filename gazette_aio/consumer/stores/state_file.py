"""Content of `state.json`: three JSON documents, each on a line, as Gazette writes them.

The documents are the offsets of journals, the state of the user, and the checkpoint. Files of old
versions have no checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field

from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Wire: the JSON encoder of Go escapes these within texts, in which alone they occur.
_ESCAPES = (
    (b"<", rb"\u003c"),
    (b">", rb"\u003e"),
    (b"&", rb"\u0026"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)


class _State(Struct):
    last_ack: int = 0
    begin: int = 0


class _Producer(Struct):
    id: bytes = b""
    state: _State = field(default_factory=_State)


class _Source(Struct):
    read_through: int = 0
    producers: list[_Producer] | None = None


class _Checkpoint(Struct):
    sources: dict[str, _Source] | None = None
    ack_intents: dict[str, bytes | None] | None = None


class StateFile(NamedTuple):
    """Content of a state file."""

    state: bytes
    """JSON document of the state."""
    checkpoint: Checkpoint


def encode_state_file(
    dumps: Callable[[Any], bytes | str], state: Any, checkpoint: Checkpoint
) -> bytes:
    """Return the content of a state file.

    Raises:
        StoreError: The state can't be encoded.
    """
    sources = sorted(checkpoint.sources.items())
    offsets = _encode({journal: source.read_through for journal, source in sources})
    try:
        document = dumps(state)
        encoded = document.encode() if isinstance(document, str) else document
        return b"\n".join((offsets, encoded, _encode(_go_form(checkpoint)), b""))
    except Exception as error:
        raise StoreError(f"encode(state): {error}") from error


def decode_state_file(content: bytes) -> StateFile:
    """Return the state and the checkpoint of a state file.

    Raises:
        StoreError: A document is missing or isn't valid.
    """
    # A state that was encoded with newlines is between the first and the last line.
    first, *middle = content.rstrip().split(b"\n")
    offsets = _decode("offsets", b"{}" if first == b"null" else first, dict[str, int])
    if not middle:
        raise StoreError("decode(state): the state is missing")
    last = middle.pop() if len(middle) > 1 else b"{}"
    decoded = _decode("checkpoint", last, _Checkpoint)
    checkpoint = Checkpoint()
    try:
        for journal, source in (decoded.sources or {}).items():
            stored = checkpoint.sources[journal]
            stored.read_through = source.read_through
            for producer in source.producers or ():
                entry = stored.producers.add(id=producer.id)
                entry.state.last_ack = producer.state.last_ack
                entry.state.begin = producer.state.begin
        for journal, intent in (decoded.ack_intents or {}).items():
            checkpoint.ack_intents[journal] = intent or b""
    except ValueError as error:
        raise StoreError(f"decode(checkpoint): {error}") from error
    try:
        for journal, offset in offsets.items():
            checkpoint.sources[journal].read_through = offset
    except ValueError as error:
        raise StoreError(f"decode(offsets): {error}") from error
    return StateFile(b"\n".join(middle), checkpoint)


def _go_form(checkpoint: Checkpoint) -> dict[str, Any]:
    sources = {
        journal: _without_zero({"read_through": source.read_through})
        | {"producers": [_producer(entry) for entry in source.producers] or None}
        for journal, source in sorted(checkpoint.sources.items())
    }
    intents = dict(sorted(checkpoint.ack_intents.items()))
    return {"sources": sources or None} | _without_zero({"ack_intents": intents})


def _producer(entry: Checkpoint.Source.ProducerEntry) -> dict[str, Any]:
    state = {"last_ack": entry.state.last_ack, "begin": entry.state.begin}
    return _without_zero({"id": entry.id}) | {"state": _without_zero(state)}


def _without_zero(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def _encode(value: Any) -> bytes:
    document = msgspec.json.encode(value)
    for character, escape in _ESCAPES:
        document = document.replace(character, escape)
    return document


def _decode(name: str, document: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"decode({name}): {error}") from error
