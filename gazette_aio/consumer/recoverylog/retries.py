"""Retries of appends to recovery logs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from gazette_aio.client.retry import Failure, RetryPolicy

_PASSING: Final = (pb.FragmentStoreUnhealthyError, pb.IndexHasGreaterOffsetError)


def retry_passing(policy: RetryPolicy) -> RetryPolicy:
    """Return a policy that also retries what only a broker or a store can mend.

    `on_error` of the given policy decides first.
    """

    def decide(failure: Failure) -> bool | None:
        answer = policy.on_error(failure) if policy.on_error is not None else None
        return True if answer is None and isinstance(failure.error, _PASSING) else answer

    return dataclasses.replace(policy, on_error=decide)
