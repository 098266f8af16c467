"""Stored record of a transaction: its acknowledgements, and the state which belongs to them.

A record is a line of a magic word and a checksum, and a line of JSON. A third line, `written`,
means that the acknowledgements were appended.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gazette_aio.message.adapters.restorable import require_plain
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.protocol.errors import StoreError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAGIC = b"gazette-aio-intents-1"
WRITTEN = b"written\n"

State = SequencerCheckpoint | bytes | dict[str, Any] | None
"""State which is stored along with intents: a checkpoint, bytes, or an object of JSON."""


class AckIntent(NamedTuple):
    """A framed acknowledgement, to be appended to a journal."""

    journal: str
    intent: bytes


@dataclass(frozen=True, slots=True)
class IntentRecord:
    """Acknowledgements of one transaction, and the state after its commit."""

    intents: tuple[AckIntent, ...] = ()
    state: State = None
    written: bool = False
    """Whether the acknowledgements are known to be appended."""


def encode_record(intents: Sequence[AckIntent], state: State) -> bytes:
    """Return the stored form of a record which isn't written yet.

    Raises:
        StoreError: `state` is neither a checkpoint, nor bytes, nor an object of JSON that's
            restored as it is.
    """
    stored: object = state
    if isinstance(state, bytes):
        stored = {"base64": base64.b64encode(state).decode()}
    elif isinstance(state, SequencerCheckpoint):
        stored = {"checkpoint": state.to_json()}
    elif state is not None:
        try:
            require_plain(state)
        except ValidationError as error:
            raise StoreError(f"state can't be stored: {error}") from error
        stored = {"json": state}
    document = {
        "intents": [
            {"journal": journal, "intent": base64.b64encode(intent).decode()}
            for journal, intent in intents
        ],
        "state": stored,
    }
    try:
        body = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise StoreError(f"state can't be stored as JSON: {error}") from error
    return b"%b %08x\n%b\n" % (MAGIC, zlib.crc32(body), body)


def decode_record(content: bytes) -> IntentRecord:
    """Return the record of its stored form.

    Raises:
        StoreError: It's damaged.
    """
    header, _, rest = content.partition(b"\n")
    body, newline, trailer = rest.partition(b"\n")
    if header != b"%b %08x" % (MAGIC, zlib.crc32(body)) or not newline:
        raise StoreError("record of intents is damaged")
    try:
        document: Mapping[str, Any] = json.loads(body)
        intents = tuple(
            AckIntent(entry["journal"], base64.b64decode(entry["intent"], validate=True))
            for entry in document["intents"]
        )
        stored: Mapping[str, Any] | None = document["state"]
        state: State = None
        if stored is not None:
            state = _decode_state(stored)
    except (KeyError, TypeError, ValueError, binascii.Error, RecursionError) as error:
        raise StoreError(f"record of intents is damaged: {error}") from error
    # A torn trailer is as good as none: acknowledgements may be appended again.
    return IntentRecord(intents, state, written=trailer.startswith(WRITTEN))


def _decode_state(stored: Mapping[str, Any]) -> State:
    if "checkpoint" in stored:
        return SequencerCheckpoint.from_json(stored["checkpoint"])
    return stored["json"] if "json" in stored else base64.b64decode(stored["base64"])
