"""Interfaces that applications implement, and the objects that their hooks are called with.

Imports `message`, `client`, `aio` and `protocol`.
"""

from __future__ import annotations

from gazette_aio.consumer.application.application import (
    Application,
    BatchConsumer,
    BeginFinisher,
    DeferToNextTransaction,
    MessageProducer,
    MessageSink,
)
from gazette_aio.consumer.application.decisions import (
    DeadLetter,
    Fail,
    MessageErrorAction,
    Retry,
    Skip,
)
from gazette_aio.consumer.application.shard import Progress, Shard
from gazette_aio.consumer.application.store import Store

__all__ = [
    "Application",
    "BatchConsumer",
    "BeginFinisher",
    "DeadLetter",
    "DeferToNextTransaction",
    "Fail",
    "MessageErrorAction",
    "MessageProducer",
    "MessageSink",
    "Progress",
    "Retry",
    "Shard",
    "Skip",
    "Store",
]
