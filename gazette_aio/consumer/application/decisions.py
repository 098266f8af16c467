"""Decisions of `on_message_error()`, about messages that can't be consumed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message import Mapping


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the shard, as without a policy."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Pass over the message. The log has a warning, and `gazette_shard_message_errors` counts it.

    Nothing that the failed hook did for the message remains.
    """


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Pass over the message, and publish a dead letter about it, exactly once.

    A dead letter is a JSON object with these members:

    - `shard`, `journal`, `begin`, `end`: where the message is; `uuid`: its UUID, or null;
    - `error`: `type` and `text` of the error;
    - `content`: the bytes of the journal from `begin` to `end`, as text, or in base64 if they
      aren't UTF-8: `encoding` is `utf-8` or `base64`. Both are null if the content is gone, or was
      read by a `MessageProducer`.

    It commits with the transaction that passes over the message. If it can't be published, the
    shard fails.
    """

    to: str | Mapping[dict[str, Any]]
    """Journal of JSON lines, or a mapping of dead letters to journals and content types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Repeat the transaction from its checkpoint, a number of times, each after a longer pause.

    Failures of the message within an assignment are counted together. While the shard pauses, it
    consumes nothing.

    Raises:
        ConfigurationError: A number is out of range.
    """

    times: int = 3
    """Retries, at least one."""
    first_seconds: float = 0.1
    """Pause before the first retry. It doubles with each further one."""
    last_seconds: float = 30.0
    """Longest pause."""
    then: Fail | Skip | DeadLetter = Fail()
    """What to do after the last retry has failed."""

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ConfigurationError(f"Retry(times={self.times}): it must be at least 1")
        if not 0 <= self.first_seconds <= self.last_seconds < math.inf:
            raise ConfigurationError(
                f"Retry(first_seconds={self.first_seconds}, last_seconds={self.last_seconds}): "
                "they must be finite, not negative, and in this order"
            )

    def pause_seconds(self, failures: int) -> float | None:
        """Return the seconds to pause after a failure; None if there are no more retries.

        Args:
            failures: Number of failures of the message, with this one.
        """
        if failures > self.times:
            return None
        # Bounded, since floats overflow.
        return min(self.first_seconds * 2.0 ** min(failures - 1, 64), self.last_seconds)


MessageErrorAction: TypeAlias = Fail | Retry | Skip | DeadLetter
"""What becomes of a message that can't be consumed."""
