"""Gazette's protocol: messages, exceptions, labels, selectors, specs, codecs and authorization.

Sources of messages are in `proto/`, with Gazette's packages, names and numbers, so that wire, text
and JSON forms are interchangeable.

* Wire: Go marshals embedded messages even when they're empty. So presence is tested by content,
  never by `HasField`, and the embedded broker sets the same messages.
* Validation of requests is strict. Of responses only the structure is checked: a spec that breaks a
  rule of this release mustn't make a listing fail. `connect(strict=True)` checks everything.
* A part of a protobuf message keeps the whole message in memory: what is kept for long is a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use
from gazette_aio.protocol import consumer as consumer, recoverylog as recoverylog
from gazette_aio.protocol._generated.broker_pb2 import (
    AppendRequest as AppendRequest,
    AppendResponse as AppendResponse,
    ApplyRequest as ApplyRequest,
    ApplyResponse as ApplyResponse,
    BrokerSpec as BrokerSpec,
    CompressionCodec as CompressionCodec,
    Fragment as Fragment,
    FragmentsRequest as FragmentsRequest,
    FragmentsResponse as FragmentsResponse,
    FragmentStoreHealthRequest as FragmentStoreHealthRequest,
    FragmentStoreHealthResponse as FragmentStoreHealthResponse,
    Header as Header,
    JournalSpec as JournalSpec,
    Label as Label,
    LabelSelector as LabelSelector,
    LabelSet as LabelSet,
    ListRequest as ListRequest,
    ListResponse as ListResponse,
    ProcessSpec as ProcessSpec,
    ReadRequest as ReadRequest,
    ReadResponse as ReadResponse,
    ReplicateRequest as ReplicateRequest,
    ReplicateResponse as ReplicateResponse,
    Route as Route,
    SHA1Sum as SHA1Sum,
    Status as Status,
)
from gazette_aio.protocol.auth.authorizers import (
    Authorizer as Authorizer,
    BearerAuth as BearerAuth,
    KeyedAuth as KeyedAuth,
    Metadata as Metadata,
    NoopAuth as NoopAuth,
    Verifier as Verifier,
)
from gazette_aio.protocol.auth.claims import (
    Capability as Capability,
    Claims as Claims,
    current_claims as current_claims,
    with_claims as with_claims,
)
from gazette_aio.protocol.codecs.bounded import Decompressor as Decompressor
from gazette_aio.protocol.codecs.codec import (
    Compressor as Compressor,
    compressor as compressor,
    decompress_all as decompress_all,
    decompressor as decompressor,
)
from gazette_aio.protocol.errors import (
    AuthorizationError as AuthorizationError,
    ConfigurationError as ConfigurationError,
    DataLossError as DataLossError,
    DependencyError as DependencyError,
    DesyncDetectedError as DesyncDetectedError,
    DidNotReadExpectedEOFError as DidNotReadExpectedEOFError,
    EmptyListResponseError as EmptyListResponseError,
    FencedError as FencedError,
    FragmentError as FragmentError,
    FrameTooLargeError as FrameTooLargeError,
    FramingError as FramingError,
    GazetteError as GazetteError,
    ListenError as ListenError,
    LockedError as LockedError,
    MappingError as MappingError,
    MixedTransactionError as MixedTransactionError,
    NotAwaitedError as NotAwaitedError,
    OffsetBeyondHeadError as OffsetBeyondHeadError,
    OffsetJumpError as OffsetJumpError,
    OperationTimeoutError as OperationTimeoutError,
    QueueFullError as QueueFullError,
    ReadError as ReadError,
    RecoveryError as RecoveryError,
    ReplayError as ReplayError,
    SeekRequiresNewReaderError as SeekRequiresNewReaderError,
    SequencerStateError as SequencerStateError,
    SequencingError as SequencingError,
    StoreError as StoreError,
    TooManyTransactionsError as TooManyTransactionsError,
    TransactionError as TransactionError,
    TransportError as TransportError,
    UnexpectedEOFError as UnexpectedEOFError,
    UnrecognizedContentTypeError as UnrecognizedContentTypeError,
    UsageError as UsageError,
    ValidationError as ValidationError,
)
from gazette_aio.protocol.fragment import (
    codec_extension as codec_extension,
    codec_from_extension as codec_from_extension,
    content_length as content_length,
    content_name as content_name,
    content_path as content_path,
    parse_fragment as parse_fragment,
    sha1_sum as sha1_sum,
    sum_from_digest as sum_from_digest,
    sum_is_zero as sum_is_zero,
    sum_to_digest as sum_to_digest,
)
from gazette_aio.protocol.go.text import (
    duration_proto as duration_proto,
    parse_duration as parse_duration,
)
from gazette_aio.protocol.journal import Journal as Journal, validate_journal as validate_journal
from gazette_aio.protocol.journal_spec import (
    intersect_journal_specs as intersect_journal_specs,
    label_set_ext as label_set_ext,
    subtract_journal_specs as subtract_journal_specs,
    union_journal_specs as union_journal_specs,
)
from gazette_aio.protocol.labels import (
    add_value as add_value,
    intersect_label_sets as intersect_label_sets,
    label_set as label_set,
    remove_label as remove_label,
    set_value as set_value,
    subtract_label_set as subtract_label_set,
    union_label_sets as union_label_sets,
    value_of as value_of,
    values_of as values_of,
)
from gazette_aio.protocol.selector import (
    format_label_selector as format_label_selector,
    parse_label_selector as parse_label_selector,
    selector_matches as selector_matches,
)
from gazette_aio.protocol.status_errors import (
    BrokerStatusError as BrokerStatusError,
    EtcdTransactionFailedError as EtcdTransactionFailedError,
    FragmentStoreUnhealthyError as FragmentStoreUnhealthyError,
    IndexHasGreaterOffsetError as IndexHasGreaterOffsetError,
    InsufficientJournalBrokersError as InsufficientJournalBrokersError,
    JournalNotFoundError as JournalNotFoundError,
    NoJournalPrimaryBrokerError as NoJournalPrimaryBrokerError,
    NoShardPrimaryError as NoShardPrimaryError,
    NotAllowedError as NotAllowedError,
    NotJournalBrokerError as NotJournalBrokerError,
    NotJournalPrimaryBrokerError as NotJournalPrimaryBrokerError,
    NotShardPrimaryError as NotShardPrimaryError,
    OffsetNotYetAvailableError as OffsetNotYetAvailableError,
    ProposalMismatchError as ProposalMismatchError,
    RegisterMismatchError as RegisterMismatchError,
    ShardEtcdTransactionFailedError as ShardEtcdTransactionFailedError,
    ShardNotFoundError as ShardNotFoundError,
    ShardStatusError as ShardStatusError,
    ShardStoppedError as ShardStoppedError,
    StatusError as StatusError,
    SuspendedError as SuspendedError,
    UnknownShardStatusError as UnknownShardStatusError,
    UnknownStatusError as UnknownStatusError,
    WrongAppendOffsetError as WrongAppendOffsetError,
    WrongRouteError as WrongRouteError,
)
from gazette_aio.protocol.store import (
    FragmentStoreURL as FragmentStoreURL,
    join_below as join_below,
    parse_fragment_store as parse_fragment_store,
)
from gazette_aio.protocol.validation.rules import validate as validate
from gazette_aio.protocol.well_known import (
    CONTENT_TYPE as CONTENT_TYPE,
    CONTENT_TYPE_CSV as CONTENT_TYPE_CSV,
    CONTENT_TYPE_JSON_LINES as CONTENT_TYPE_JSON_LINES,
    CONTENT_TYPE_PROTO_FIXED as CONTENT_TYPE_PROTO_FIXED,
    CONTENT_TYPE_RECOVERY_LOG as CONTENT_TYPE_RECOVERY_LOG,
    INSTANCE as INSTANCE,
    MANAGED_BY as MANAGED_BY,
    MESSAGE_SUBTYPE as MESSAGE_SUBTYPE,
    MESSAGE_TYPE as MESSAGE_TYPE,
    REGION as REGION,
    TAG as TAG,
)

# Imported at first use: few programs read journal spaces.
if TYPE_CHECKING:
    from gazette_aio.protocol.journal_space.space import Node as Node
    from gazette_aio.protocol.journal_space.yaml import (
        dump_journal_space as dump_journal_space,
        load_journal_space as load_journal_space,
    )

if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals())
