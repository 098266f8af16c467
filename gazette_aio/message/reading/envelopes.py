"""Engine of envelopes: messages of journals in commit order, or in journal order."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.message.adapters.base import PlacedAdapter
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.envelopes.content import Refusal, uuid_of
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.reading.engine import JournalEngine
from gazette_aio.message.uuid import ACK_TXN, KNOWN_FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.core import Batch
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.envelopes.outputs import BadMessages, Made
    from gazette_aio.protocol.errors import FramingError

T = TypeVar("T")

LEAST_AT_ONCE: Final = 32
MOST_AT_ONCE: Final = 128
_AT_ONCE_BYTES: Final = 32 << 10
_MOST_UNDECODABLE: Final = 64


class EnvelopeMaker(Generic[T]):
    """Decodes messages of a journal, and makes their envelopes.

    Messages are decoded few at a time, so that they're used while a processor's caches have them,
    and so that the garbage collector finds few of their objects alive.

    Args:
        journal_format: Format of the journal.
        bad: What becomes of messages that can't be decoded.
        start_clock: Messages with smaller nonzero clocks are left out.
    """

    def __init__(
        self,
        journal_format: JournalFormat[T],
        bad: BadMessages,
        start_clock: int = 0,
    ) -> None:
        self._format = journal_format
        self._bad = bad
        self._start_clock = start_clock
        adapter = journal_format.adapter
        self._decode = adapter.decode
        # No line of such content has a newline of its own.
        self._decode_lines = (
            adapter.decode_lines
            if isinstance(adapter, JSONAdapter) and journal_format.framing.splits == "lines"
            else None
        )
        self._are_acks_decodable = True
        place = adapter.uuid_place if isinstance(adapter, PlacedAdapter) else None
        self._prefix = None if place is None else place.prefix
        self._behind_uuid = 0 if place is None else place.uuid_end
        # Bytes after the UUID of acknowledgements that can't be decoded.
        self._undecodable: set[bytes] = set()

    def make(self, batch: Batch, start: int) -> tuple[list[Made[list[Envelope[T]]]], int]:
        """Return envelopes of the next messages, up to the first that can't be decoded."""
        envelopes, bad = self.envelopes(batch, start)
        made, first = start + len(envelopes), self._start_clock
        if first:
            envelopes = [each for each in envelopes if not each.clock or each.clock >= first]
        outputs: list[Made[list[Envelope[T]]]] = [(envelopes, made)] if envelopes else []
        if bad is not None:
            [encoded] = self.encoded(batch, made, made + 1)
            made += 1
            if encoded.clock and encoded.clock < first:
                return outputs, made  # It's left out as well.
            refusal = Refusal(bad, encoded.begin, encoded.end, "decode")
            outputs += [(error, made) for error in self._bad.errors(self._format.journal, refusal)]
        return outputs, made

    def envelopes(self, batch: Batch, start: int) -> tuple[list[Envelope[T]], Exception | None]:
        """Return envelopes of the next few messages, and why the one after can't be decoded."""
        begins, ends, *_ = batch.places(start, start + 1, KNOWN_FLAGS)
        fitting = min(_AT_ONCE_BYTES // max(ends[0] - begins[0], 1), MOST_AT_ONCE)
        stop = min(start + max(LEAST_AT_ONCE, fitting), len(batch))
        acks, explicit = batch.unusual(start, stop)
        messages, bad = self._messages(batch, start, stop, acks)
        return self._stamped(batch, start, messages, explicit), bad

    def encoded(self, batch: Batch, start: int, stop: int) -> list[Envelope[Any]]:
        """Return envelopes of messages that aren't decoded: `decode()` does it."""
        _, explicit = batch.unusual(start, stop)
        return self._stamped(batch, start, batch.payloads(start, stop), explicit)

    def _stamped(
        self, batch: Batch, start: int, messages: list[Any], explicit: list[int]
    ) -> list[Envelope[Any]]:
        stop = start + len(messages)
        begins, ends, clocks, flags, producers = batch.places(start, stop, KNOWN_FLAGS)
        journal, origin = self._format.journal, self._format.origin
        envelopes: list[Envelope[Any]] = list(
            map(
                Envelope,
                repeat(journal),
                begins,
                ends,
                clocks,
                flags,
                producers,
                messages,
                repeat(origin),
            )
        )
        for index in explicit:
            if index < stop:
                payload = batch.payloads(index, index + 1)[0]
                envelopes[index - start].explicit_uuid = uuid_of(self._format.adapter, payload)
        return envelopes

    def decode(self, envelope: Envelope[Any]) -> None:
        """Decode the message of an envelope in place.

        Raises:
            Exception: It can't be decoded.
        """
        payload = envelope.message
        is_ack = envelope.flags == ACK_TXN
        envelope.message = self._decode_ack(payload) if is_ack else self._decode(payload)

    def refuse(self, refusal: Refusal) -> Sequence[list[Envelope[T]] | FramingError]:
        """Return the error of bytes that are no message."""
        return self._bad.errors(self._format.journal, refusal)

    def _messages(
        self, batch: Batch, start: int, stop: int, acks: list[int]
    ) -> tuple[list[Any], Exception | None]:
        """Return decoded messages, up to the first that can't be decoded, and its error."""
        decode_lines = self._decode_lines
        if decode_lines is not None:
            with_acks = self._are_acks_decodable
            try:
                messages = decode_lines(batch.lines(start, stop, acks=with_acks))
            except Exception:  # noqa: BLE001 - found again, one by one.
                messages = None
            if messages is not None:
                for index in () if with_acks else acks:
                    payload = batch.payloads(index, index + 1)[0]
                    messages.insert(index - start, self._decode_ack(payload))
                return messages, None
        return self._messages_singly(batch, start, stop, acks)

    def _messages_singly(
        self, batch: Batch, start: int, stop: int, acks: list[int]
    ) -> tuple[list[Any], Exception | None]:
        decode, messages, skipped = self._decode, list[Any](), set(acks)
        try:
            for index, payload in enumerate(batch.payloads(start, stop), start):
                messages.append(self._decode_ack(payload) if index in skipped else decode(payload))
        except Exception as error:  # noqa: BLE001 - returned.
            return messages, error
        return messages, None

    def _decode_ack(self, frame: bytes) -> Any:
        prefix = self._prefix
        is_placed = prefix is not None and frame.startswith(prefix)
        # Hot: acknowledgements differ only by their UUID, and exceptions are slow.
        rest = frame[self._behind_uuid :]
        if is_placed and rest in self._undecodable:
            return None
        try:
            return self._decode(frame)
        except Exception:  # noqa: BLE001 - types with required members.
            self._are_acks_decodable = False
            if is_placed and len(self._undecodable) < _MOST_UNDECODABLE:
                self._undecodable.add(rest)
            return None


class EnvelopeEngine(JournalEngine["list[Envelope[T]]"], Generic[T]):
    """Makes envelopes of the content of journals. See `JournalEngine`."""

    replay_bytes = 1

    def maker_of(self, journal_format: JournalFormat[T]) -> EnvelopeMaker[T]:
        """Return the maker of envelopes of a journal."""
        return EnvelopeMaker(journal_format, self.bad, self._start_clock)
