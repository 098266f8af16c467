"""Calls of the broker's services, with what's counted and told of each."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from gazette_aio.broker.host.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Generator

    from gazette_aio.broker.core import BrokerCore

logger = logging.getLogger(__name__)

_OK = "ok"
_ERROR = "<error>"


class Outcome:
    """Outcome of a call.

    Args:
        status: Status which the call ends with, unless it fails.
    """

    __slots__ = ("status",)

    def __init__(self, status: str = _OK) -> None:
        self.status = status


@contextlib.contextmanager
def counted(core: BrokerCore, operation: str) -> Generator[Outcome]:
    """Count a call, as those over gRPC are, and log its failure.

    Args:
        core: The broker.
        operation: Name of the RPC which it stands for.
    """
    metrics = core.metrics
    metrics.started[operation] += 1
    outcome = Outcome()
    try:
        yield outcome
    except BaseException as error:
        outcome.status = _ERROR
        if isinstance(error, RpcError):
            logger.info(
                "served request failed", extra={"operation": operation, "error": error.text}
            )
        raise
    finally:
        metrics.completed[operation, outcome.status] += 1
