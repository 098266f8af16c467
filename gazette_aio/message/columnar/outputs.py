"""Outputs of messages: record batches, and errors of messages that can't be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gazette_aio.message.columnar.documents.decoder import Decoded
from gazette_aio.message.columnar.payloads import MAX_TAKE_BYTES
from gazette_aio.message.columnar.pyarrow_api import pa
from gazette_aio.message.columnar.records import RecordBuilder
from gazette_aio.message.envelopes.content import framing_error
from gazette_aio.message.envelopes.stamps import BadFrame
from gazette_aio.message.uuid import ACK_TXN
from gazette_aio.protocol.errors import ConfigurationError, FramingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyarrow import RecordBatch

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.columnar.documents.decoder import DocumentDecoder
    from gazette_aio.message.columnar.payloads import Payloads
    from gazette_aio.message.sequencing.columns import Indices, UuidColumns

_ACK = np.uint16(ACK_TXN)


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options of record batches."""

    adapter: Adapter[Any]
    documents: DocumentDecoder | None
    """Decoder of documents; or None to output their bytes."""
    acks: bool
    """Whether acknowledgements are rows as well; of nulls, if documents are decoded."""
    skip_errors: bool
    """Whether messages that can't be decoded are skipped, and counted."""
    strict_uuid: bool
    max_frame_bytes: int
    batch_bytes: int
    """Bytes of content that are split and sequenced at once."""
    start_clock: int = 0
    """Messages with older clocks are skipped; none if zero."""

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "max_frame_bytes"):
            size: int = getattr(self, name)
            if not 1 <= size <= MAX_TAKE_BYTES:
                # Arrays of Arrow have offsets of 32 bits.
                text = f"{name} is {size} (expected 1 to {MAX_TAKE_BYTES} for Arrow batches)"
                raise ConfigurationError(text)


class Progress(NamedTuple):
    """Number of messages of a plan that were delivered."""

    delivered: int | None = None
    """Number of its rows; None for all of the plan, its replay included."""
    replayed: tuple[int, int] | None = None
    """Clock and offset of the last message of its replay."""


DONE = Progress()


class Output(NamedTuple):
    """A record batch or an error, and the progress after it is taken."""

    value: RecordBatch | FramingError
    progress: Progress


class OutputMaker(Protocol):
    """Makes the outputs of messages of one journal."""

    journal: str
    """Name of the journal."""
    options: RecordOptions
    """Options of the outputs."""

    @property
    def skipped(self) -> int:
        """Number of messages and frames that were skipped as they can't be decoded."""
        ...

    def make(
        self,
        columns: UuidColumns,
        payloads: Payloads,
        indices: Indices,
        progress: Callable[[int], Progress],
        final: Progress,
    ) -> list[Output]:
        """Return outputs of messages, as `RecordMaker.make()` does."""
        ...

    def refuse(
        self,
        error: Exception,
        content: bytes | None,
        begin: int,
        end: int,
        kind: str,
        *,
        cls: type[FramingError] = FramingError,
    ) -> list[Output]:
        """Return outputs of the bytes `[begin, end)` of the journal, which are no message.

        Calls are in the order of the content. If options skip errors, there are no outputs, and
        calls may precede those of `make()`.

        Args:
            error: Reason.
            content: The frame of the bytes; None if they aren't a frame.
            begin: Begin of the bytes.
            end: End of the bytes.
            kind: Kind of the FramingError.
            cls: Class of the FramingError.
        """
        ...


class RecordMaker:
    """Makes the outputs of messages of one journal.

    Args:
        journal: Name of the journal.
        options: Options of the outputs.
        explain: Returns the error to raise for an error.
    """

    def __init__(
        self,
        journal: str,
        options: RecordOptions,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        self.journal = journal
        self.options = options
        self.skipped: int = 0
        """Number of messages and frames that were skipped as they can't be decoded."""
        self._explain = explain
        documents = options.documents
        self._builder = RecordBuilder(journal, None if documents is None else documents.schema)

    def make(
        self,
        columns: UuidColumns,
        payloads: Payloads,
        indices: Indices,
        progress: Callable[[int], Progress],
        final: Progress,
    ) -> list[Output]:
        """Return batches of messages, and errors between them.

        Args:
            columns: UUIDs of the messages.
            payloads: Bytes of the messages.
            indices: Indices of the messages in `payloads`.
            progress: Returns the progress after a number of the messages.
            final: Progress after all of them.
        """
        wanted = self._wanted(columns)
        if wanted is not None:
            columns, indices = columns.take(wanted), indices[wanted]

        def progress_at(count: int) -> Progress:
            """Return the progress after a number of the wanted messages."""
            if wanted is not None and count:
                count = int(wanted[count - 1]) + 1
            return progress(count)

        outputs: list[Output] = []
        at = 0
        for piece in payloads.pieces(indices):
            rows = columns.slice(at, at + len(piece))
            outputs += self._make_piece(rows, payloads, piece, at, progress_at)
            at += len(piece)
        if outputs:
            # Unwanted messages after the last wanted one are delivered along with it.
            outputs[-1] = Output(outputs[-1].value, final)
        return outputs

    def _make_piece(
        self,
        columns: UuidColumns,
        payloads: Payloads,
        indices: Indices,
        base: int,
        progress: Callable[[int], Progress],
    ) -> list[Output]:
        total = base + columns.rows
        documents = self.options.documents
        if documents is None:
            batch = self._builder.build(columns, payloads.take(indices))
            return [Output(batch, progress(total))]
        decoded = self._decode(documents, columns, payloads, indices)
        good = columns if decoded.good is None else columns.take(decoded.good)
        outputs: list[Output] = []
        at = 0

        def add_rows(stop: int, count: int) -> None:
            if stop > at:
                rows = decoded.batch.slice(at, stop - at)
                batch = self._builder.build(good.slice(at, stop), rows)
                outputs.append(Output(batch, progress(count)))

        if self.options.skip_errors:
            self.skipped += len(decoded.bad)
        else:
            for passed, bad in enumerate(decoded.bad):
                stop = bad.position - passed
                add_rows(stop, base + bad.position)
                at = stop
                begin, end = int(columns.begin[bad.position]), int(columns.end[bad.position])
                failed = self.failure(bad.error, begin, end, "decode")
                outputs.append(Output(failed, progress(base + bad.position + 1)))
        add_rows(good.rows, total)
        return outputs

    def _decode(
        self,
        documents: DocumentDecoder,
        columns: UuidColumns,
        payloads: Payloads,
        indices: Indices,
    ) -> Decoded:
        """Decode messages. Acknowledgements, which are no documents, become rows of nulls."""
        is_ack = columns.flags == _ACK
        if not is_ack.any():
            return documents.decode(payloads.take(indices))
        messages = np.flatnonzero(~is_ack)
        batch, good, bad = documents.decode(payloads.take(indices[messages]))
        at = np.full(len(indices), -1, np.int64)
        at[messages if good is None else messages[good]] = np.arange(batch.num_rows)
        kept = np.flatnonzero(is_ack | (at >= 0))
        at = at[kept]
        batch = batch.take(pa.array(at, mask=at < 0))
        bad = [BadFrame(int(messages[position]), error) for position, error in bad]
        return Decoded(batch, kept, bad)

    def refuse(
        self,
        error: Exception,
        content: bytes | None,  # noqa: ARG002
        begin: int,
        end: int,
        kind: str,
        *,
        cls: type[FramingError] = FramingError,
    ) -> list[Output]:
        """Return the error of the bytes `[begin, end)`, unless errors are skipped."""
        if self.options.skip_errors:
            self.skipped += 1
            return []
        return [Output(self.failure(error, begin, end, kind, cls), DONE)]

    def failure(
        self,
        error: Exception,
        begin: int,
        end: int,
        kind: str,
        cls: type[FramingError] = FramingError,
    ) -> FramingError:
        """Return the error of the bytes `[begin, end)` of the journal."""
        failed = self._explain(framing_error(error, self.journal, begin, end, kind, cls))
        failed.__cause__ = error
        return failed

    def _wanted(self, columns: UuidColumns) -> Indices | None:
        """Return the indices of messages to output, or None for all."""
        wanted = None
        if not self.options.acks:
            wanted = columns.flags != _ACK
        if self.options.start_clock:
            bound = np.uint64(self.options.start_clock)
            recent = (columns.clock == 0) | (columns.clock >= bound)
            wanted = recent if wanted is None else wanted & recent
        if wanted is None or wanted.all():
            return None
        return np.flatnonzero(wanted)
