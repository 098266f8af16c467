"""An asyncio SDK for Gazette: journals, messages exactly once, and an embedded broker.

The most common names are here; each is imported at its first use. All names are in the packages
`client`, `message`, `consumer`, `broker`, `spark`, `testing`, `contrib` and `protocol`. `protocol`
has the wire messages, their rules, and all exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use

if TYPE_CHECKING:
    from gazette_aio.broker import (
        EmbeddedBroker,
    )
    from gazette_aio.client import (
        AppendService,
        AsyncAppend,
        AsyncJournalClient,
        JournalClient,
        OpFuture,
        RetryPolicy,
        RetryReader,
        connect,
    )
    from gazette_aio.message import (
        ACK_TXN,
        Adapter,
        Clock,
        Envelope,
        Fence,
        Flags,
        IntentLog,
        Publisher,
        ReadCommittedIter,
        ReadUncommittedIter,
        Sequencer,
        csv_adapter,
        json_adapter,
        modulo_mapping,
        protobuf_adapter,
        random_mapping,
        raw_adapter,
        rendezvous_mapping,
    )
    from gazette_aio.protocol import (
        BearerAuth,
        BrokerStatusError,
        ConfigurationError,
        FencedError,
        FramingError,
        GazetteError,
        JournalNotFoundError,
        KeyedAuth,
        NoopAuth,
        OffsetBeyondHeadError,
        OffsetJumpError,
        OffsetNotYetAvailableError,
        OperationTimeoutError,
        ReadError,
        TransportError,
        ValidationError,
        label_set,
        load_journal_space,
        parse_label_selector,
    )

__all__ = [
    "ACK_TXN",
    "Adapter",
    "AppendService",
    "AsyncAppend",
    "AsyncJournalClient",
    "BearerAuth",
    "BrokerStatusError",
    "Clock",
    "ConfigurationError",
    "EmbeddedBroker",
    "Envelope",
    "Fence",
    "FencedError",
    "Flags",
    "FramingError",
    "GazetteError",
    "IntentLog",
    "JournalClient",
    "JournalNotFoundError",
    "KeyedAuth",
    "NoopAuth",
    "OffsetBeyondHeadError",
    "OffsetJumpError",
    "OffsetNotYetAvailableError",
    "OpFuture",
    "OperationTimeoutError",
    "Publisher",
    "ReadCommittedIter",
    "ReadError",
    "ReadUncommittedIter",
    "RetryPolicy",
    "RetryReader",
    "Sequencer",
    "TransportError",
    "ValidationError",
    "__version__",
    "connect",
    "csv_adapter",
    "json_adapter",
    "label_set",
    "load_journal_space",
    "modulo_mapping",
    "parse_label_selector",
    "protobuf_adapter",
    "random_mapping",
    "raw_adapter",
    "rendezvous_mapping",
]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals())
