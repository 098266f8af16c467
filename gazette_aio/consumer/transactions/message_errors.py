"""Messages of a shard that can't be consumed, and what the application decides about them.

A failed hook may have changed the store, and published. So its transaction is given up, and
repeated from the checkpoint, which restores the store. In the repetition, a message that has failed
begins a transaction of its own: what precedes it commits first, and each further repetition is
short. A message that can't be decoded reached no hook, so that nothing has to be repeated.
"""

from __future__ import annotations

import base64
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import gazette_aio.protocol as pb
from gazette_aio.consumer.application.decisions import DeadLetter, Fail, Retry, Skip
from gazette_aio.consumer.transactions.explain import described, explained, explaining, place_of
from gazette_aio.consumer.transactions.sources import next_chunk
from gazette_aio.message import json_adapter
from gazette_aio.protocol.errors import (
    DependencyError,
    FencedError,
    OffsetJumpError,
    TransactionError,
)
from gazette_aio.protocol.status_errors import text_without_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.message import Envelope, Mapping, Publisher

_logger = logging.getLogger(__name__)

_OF_SHARD: Final = (TransactionError, FencedError, DependencyError)
"""Errors that aren't the fault of the message whose hook raises them."""


class RepeatedError(TransactionError):
    """A transaction is given up, to be repeated from its checkpoint.

    Args:
        text: Why.
        seconds: Pause before.
    """

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text, seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"{self.args[0]}; the transaction is repeated"


@dataclass(slots=True)
class Suspect:
    """A message that has failed, or may have: it's consumed by a call of its own."""

    failures: int = 0
    error: Exception | None = None
    """Why it can't be decoded, until that's decided about."""
    action: Skip | DeadLetter | None = None
    cause: tuple[str, str] = "", ""
    """Type and text of the error about which `action` was decided."""


class MessageErrors:
    """Messages of an assignment that can't be consumed.

    Args:
        hooks: Hooks of the application.
        shard: The shard.
        on_decision: Called with the shard's key and each decision; None for nobody.
    """

    def __init__(
        self, hooks: Hooks, shard: Shard, on_decision: Callable[[str, str], object] | None
    ) -> None:
        self._hooks = hooks
        self._shard = shard
        self._on_decision = on_decision
        self.suspects: dict[tuple[str, int], Suspect] = {}
        """Messages to be consumed by a call of their own, by journal and offset."""
        self._passed: list[tuple[str, int]] = []

    def __repr__(self) -> str:
        return f"<MessageErrors of {self._shard.id}: {len(self.suspects)} suspects>"

    def find(self, envelope: Envelope[Any]) -> Suspect | None:
        """Return what is known of a message that is to be consumed by a call of its own."""
        return self.suspects.get((envelope.journal, envelope.begin))

    def passed(self, envelope: Envelope[Any]) -> None:
        """The current transaction has consumed a message, or passed over it."""
        self._passed.append((envelope.journal, envelope.begin))

    def committing(self) -> None:
        """The current transaction starts to commit: it isn't repeated any longer."""
        for place in self._passed:
            self.suspects.pop(place, None)
        self._passed.clear()

    def undecodable(self, envelope: Envelope[Any], error: Exception) -> Suspect:
        """Note why a message can't be decoded."""
        suspect = self._suspect(envelope)
        # Without its frames, which lead back to here.
        suspect.error = error.with_traceback(None)
        return suspect

    def _suspect(self, envelope: Envelope[Any]) -> Suspect:
        return self.suspects.setdefault((envelope.journal, envelope.begin), Suspect())

    async def hook_failed(self, envelopes: Sequence[Envelope[Any]], error: Exception) -> NoReturn:
        """Raise what becomes of the transaction.

        Args:
            envelopes: Messages, one of which the hook failed at.
            error: Error of the hook.

        Raises:
            RepeatedError: The transaction is repeated.
            TransactionError: The shard fails.

        Cancellation: aborts.
        """
        # Invariant: what is raised isn't kept in a variable here. Its traceback has this frame, and
        # the shard would be freed only by a garbage collection.
        hook = "consume_batch()" if self._hooks.consumes_batches else "consume_message()"
        name = f"{place_of(envelopes)}: {hook}"
        if not self._hooks.decides_errors or isinstance(error, _OF_SHARD):
            self._decided("fail")
            raise explained(name, error)
        if len(envelopes) > 1:
            # Which of them it is shows when each is consumed by a call of its own.
            for envelope in envelopes:
                self._suspect(envelope)
            text = f"{name}: {described(error)}"
            self._log(envelopes, f"{text}; its messages are consumed one by one")
            self._passed.clear()
            raise RepeatedError(text, 0.0) from error
        suspect = self._suspect(envelopes[0])
        if await self._decide(envelopes[0], suspect, name, error):
            self._passed.clear()
            raise RepeatedError(f"{name}: {described(error)}", 0.0) from error
        raise explained(name, error)

    async def decoding_failed(self, envelope: Envelope[Any], suspect: Suspect) -> None:
        """Decide how to pass over a message that can't be decoded.

        Raises:
            RepeatedError: The transaction is repeated.
            TransactionError: The shard fails.

        Cancellation: aborts.
        """
        error, suspect.error = suspect.error, None
        assert error is not None, "it can't be decoded for a reason"
        name = f"{place_of([envelope])} can't be decoded"
        if not self._hooks.decides_errors:
            self._decided("fail")
            raise explained(name, error)
        if not await self._decide(envelope, suspect, name, error):
            raise explained(name, error)

    async def _decide(
        self, envelope: Envelope[Any], suspect: Suspect, name: str, error: Exception
    ) -> bool:
        """Decide about a message, and return False if the shard is to fail."""
        suspect.failures += 1
        text = f"{name}: {described(error)}"
        with explaining(f"{text}; on_message_error()"):
            action = await self._hooks.on_message_error(self._shard, envelope, error)
            if not isinstance(action, Fail | Retry | Skip | DeadLetter):
                wrong = f"it returned {action!r}, and not Fail, Retry, Skip or DeadLetter"
                raise TypeError(wrong)
        if isinstance(action, Retry):
            seconds = action.pause_seconds(suspect.failures)
            if seconds is not None:
                number = f"{suspect.failures} of {action.times}"
                self._log([envelope], f"{text}; retry {number} follows in {seconds:g} s")
                self._decided("retry")
                self._passed.clear()
                raise RepeatedError(text, seconds) from error
            action = action.then
        match action:
            case Fail():
                self._decided("fail")
                return False
            case Skip():
                self._log([envelope], f"{text}; the message is skipped")
                self._decided("skip")
            case DeadLetter():
                self._log([envelope], f"{text}; the message becomes a dead letter")
                self._decided("dead_letter")
        suspect.action = action
        # Surrogates, which a text may quote, aren't UTF-8.
        reason = text_without_endpoint(error).encode(errors="backslashreplace").decode()
        suspect.cause = type(error).__name__, reason
        return True

    def _decided(self, action: str) -> None:
        if self._on_decision is not None:
            self._on_decision(self._shard.fqn, action)

    def _log(self, envelopes: Sequence[Envelope[Any]], text: str) -> None:
        extra = {
            "shard": self._shard.id,
            "journal": envelopes[0].journal,
            "offset": envelopes[0].begin,
        }
        _logger.warning("shard %s: %s", self._shard.id, text, extra=extra)

    async def pass_over(
        self, envelope: Envelope[Any], suspect: Suspect, publisher: Publisher[Any]
    ) -> None:
        """Pass over a message as it was decided, within the current transaction.

        Raises:
            TransactionError: The dead letter can't be published.

        Cancellation: aborts — a dead letter may be pending.
        """
        action = suspect.action
        if isinstance(action, DeadLetter):
            with explaining(f"dead letter of {place_of([envelope])}, {': '.join(suspect.cause)}"):
                letter = await self._letter(envelope, suspect)
                append = await publisher.view(json_adapter()).publish_uncommitted(
                    _mapping_of(action), letter
                )
                await append
        self.passed(envelope)

    async def _letter(self, envelope: Envelope[Any], suspect: Suspect) -> dict[str, Any]:
        content = None if self._hooks.producer is not None else await self._content(envelope)
        text, encoding = None, None
        if content is not None:
            try:
                text, encoding = content.decode(), "utf-8"
            except UnicodeDecodeError:
                text, encoding = base64.b64encode(content).decode(), "base64"
        kind, reason = suspect.cause
        return {
            "shard": self._shard.id,
            "journal": envelope.journal,
            "begin": envelope.begin,
            "end": envelope.end,
            "uuid": str(envelope.uuid) if envelope.uuid.int else None,
            "error": {"type": kind, "text": reason},
            "content": text,
            "encoding": encoding,
        }

    async def _content(self, envelope: Envelope[Any]) -> bytes | None:
        request = pb.ReadRequest(
            journal=envelope.journal, offset=envelope.begin, end_offset=envelope.end, block=True
        )
        client, content = self._shard.client, bytearray()
        async with client.read(request, timeout=math.inf) as reader:
            try:
                while chunk := await next_chunk(client, envelope.journal, reader):
                    content += chunk
            except OffsetJumpError:
                return None  # It was deleted meanwhile.
        return bytes(content) if len(content) == envelope.end - envelope.begin else None


def _mapping_of(action: DeadLetter) -> Mapping[dict[str, Any]]:
    to = action.to
    return (lambda _: (to, pb.CONTENT_TYPE_JSON_LINES)) if isinstance(to, str) else to
