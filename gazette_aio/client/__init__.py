"""Client of Gazette brokers: appending to, reading and listing journals."""

from __future__ import annotations

from gazette_aio.client.appends.appender import Appender
from gazette_aio.client.appends.async_journal_client import AsyncJournalClient
from gazette_aio.client.appends.futures import AsyncOperation, OpFuture, finished_operation
from gazette_aio.client.appends.handle import AsyncAppend
from gazette_aio.client.appends.journal_errors import ClearedError
from gazette_aio.client.appends.once import Content
from gazette_aio.client.appends.service import AppendService, StrictAppendService
from gazette_aio.client.auth import Auth, auth_from_environment
from gazette_aio.client.client import JournalClient, connect
from gazette_aio.client.context import ClientOptions, HasContext
from gazette_aio.client.fragments.fetcher import (
    FragmentBody,
    FragmentFetcher,
    HTTPFragmentFetcher,
)
from gazette_aio.client.fragments.file_transport import install_file_transport
from gazette_aio.client.fragments.reader import FragmentReader
from gazette_aio.client.fragments.source import FragmentSource, open_fragment, open_fragment_url
from gazette_aio.client.journal_rpcs import JournalRPCs
from gazette_aio.client.listing.calls import (
    ListStream,
    apply_journals,
    get_journal,
    iter_journals,
    list_all_journals,
    read_list_response,
)
from gazette_aio.client.listing.changes import JournalChange, ListChanges
from gazette_aio.client.listing.fold import ListFold
from gazette_aio.client.listing.fragment_calls import (
    iter_fragments,
    list_all_fragments,
)
from gazette_aio.client.listing.watched_list import PolledList, WatchedList
from gazette_aio.client.metrics import Metrics
from gazette_aio.client.options import TLSOptions
from gazette_aio.client.reads.buffered_reader import BufferedRetryReader
from gazette_aio.client.reads.reader import Reader
from gazette_aio.client.reads.retry_reader import ReadingClient, RetryReader
from gazette_aio.client.retry import Failure, Operation, RetryPolicy, backoff
from gazette_aio.client.rpc.member_choice import Members, members_of
from gazette_aio.client.rpc.route_cache import DispatchRouter, NoopDispatchRouter, RouteCache
from gazette_aio.client.status import (
    AppendStatus,
    ClientStatus,
    MemberStatus,
    StreamStatus,
    WatchStatus,
)
from gazette_aio.client.tracing import Span, Tracing

__all__ = [
    "AppendService",
    "AppendStatus",
    "Appender",
    "AsyncAppend",
    "AsyncJournalClient",
    "AsyncOperation",
    "Auth",
    "BufferedRetryReader",
    "ClearedError",
    "ClientOptions",
    "ClientStatus",
    "Content",
    "DispatchRouter",
    "Failure",
    "FragmentBody",
    "FragmentFetcher",
    "FragmentReader",
    "FragmentSource",
    "HTTPFragmentFetcher",
    "HasContext",
    "JournalChange",
    "JournalClient",
    "JournalRPCs",
    "ListChanges",
    "ListFold",
    "ListStream",
    "MemberStatus",
    "Members",
    "Metrics",
    "NoopDispatchRouter",
    "OpFuture",
    "Operation",
    "PolledList",
    "Reader",
    "ReadingClient",
    "RetryPolicy",
    "RetryReader",
    "RouteCache",
    "Span",
    "StreamStatus",
    "StrictAppendService",
    "TLSOptions",
    "Tracing",
    "WatchStatus",
    "WatchedList",
    "apply_journals",
    "auth_from_environment",
    "backoff",
    "connect",
    "finished_operation",
    "get_journal",
    "install_file_transport",
    "iter_fragments",
    "iter_journals",
    "list_all_fragments",
    "list_all_journals",
    "members_of",
    "open_fragment",
    "open_fragment_url",
    "read_list_response",
]
