"""Client of Gazette brokers: appending to, reading and listing journals."""

from __future__ import annotations

from gazette_aio.client.append_once import Content, append
from gazette_aio.client.append_service import AppendService, AppendStatus
from gazette_aio.client.appender import Appender
from gazette_aio.client.async_append import AsyncAppend
from gazette_aio.client.auth import Auth, auth_from_environment
from gazette_aio.client.buffered_reader import BufferedRetryReader
from gazette_aio.client.channel_pool import MemberStatus
from gazette_aio.client.client import JournalClient, connect
from gazette_aio.client.file_transport import install_file_transport
from gazette_aio.client.fragment_fetcher import (
    FragmentBody,
    FragmentFetcher,
    HTTPFragmentFetcher,
)
from gazette_aio.client.fragment_reader import FragmentReader
from gazette_aio.client.fragment_url import FragmentSource, open_fragment_url
from gazette_aio.client.futures import AsyncOperation, OpFuture, finished_operation
from gazette_aio.client.list_changes import JournalChange, ListChanges
from gazette_aio.client.list_fold import ListFold
from gazette_aio.client.listing import (
    apply_journals,
    fragment_store_health,
    get_journal,
    iter_fragments,
    iter_journals,
    list_all_fragments,
    list_all_journals,
    read_list_response,
)
from gazette_aio.client.metrics import Metrics
from gazette_aio.client.options import TLSOptions
from gazette_aio.client.reader import Reader
from gazette_aio.client.retry import Failure, Operation, RetryPolicy, backoff
from gazette_aio.client.retry_reader import RetryReader
from gazette_aio.client.route_cache import DispatchRouter, NoopDispatchRouter, RouteCache
from gazette_aio.client.status import ClientStatus, StreamStatus, WatchStatus
from gazette_aio.client.watched_list import PolledList, WatchedList

__all__ = [
    "AppendService",
    "AppendStatus",
    "Appender",
    "AsyncAppend",
    "AsyncOperation",
    "Auth",
    "BufferedRetryReader",
    "ClientStatus",
    "Content",
    "DispatchRouter",
    "Failure",
    "FragmentBody",
    "FragmentFetcher",
    "FragmentReader",
    "FragmentSource",
    "HTTPFragmentFetcher",
    "JournalChange",
    "JournalClient",
    "ListChanges",
    "ListFold",
    "MemberStatus",
    "Metrics",
    "NoopDispatchRouter",
    "OpFuture",
    "Operation",
    "PolledList",
    "Reader",
    "RetryPolicy",
    "RetryReader",
    "RouteCache",
    "StreamStatus",
    "TLSOptions",
    "WatchStatus",
    "WatchedList",
    "append",
    "apply_journals",
    "auth_from_environment",
    "backoff",
    "connect",
    "finished_operation",
    "fragment_store_health",
    "get_journal",
    "install_file_transport",
    "iter_fragments",
    "iter_journals",
    "list_all_fragments",
    "list_all_journals",
    "open_fragment_url",
    "read_list_response",
]
