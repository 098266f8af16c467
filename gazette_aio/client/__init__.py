"""Client of Gazette brokers: appending to, reading and listing journals."""

from __future__ import annotations

from gazette_aio.client.append_once import Content, append
from gazette_aio.client.append_service import AppendService, AppendStatus
from gazette_aio.client.appender import Appender
from gazette_aio.client.async_append import AsyncAppend
from gazette_aio.client.auth import Auth, auth_from_environment
from gazette_aio.client.client import ClientStatus, JournalClient, StreamStatus, connect
from gazette_aio.client.futures import AsyncOperation, OpFuture, finished_operation
from gazette_aio.client.list_fold import ListFold
from gazette_aio.client.listing import (
    apply_journals,
    fragment_store_health,
    get_journal,
    iter_fragments,
    list_all_fragments,
    list_all_journals,
    read_list_response,
)
from gazette_aio.client.metrics import Metrics
from gazette_aio.client.options import TLSOptions
from gazette_aio.client.reader import Reader
from gazette_aio.client.retry import Failure, Operation, RetryPolicy, backoff
from gazette_aio.client.retry_reader import RetryReader

__all__ = [
    "AppendService",
    "AppendStatus",
    "Appender",
    "AsyncAppend",
    "AsyncOperation",
    "Auth",
    "ClientStatus",
    "Content",
    "Failure",
    "JournalClient",
    "ListFold",
    "Metrics",
    "OpFuture",
    "Operation",
    "Reader",
    "RetryPolicy",
    "RetryReader",
    "StreamStatus",
    "TLSOptions",
    "append",
    "apply_journals",
    "auth_from_environment",
    "backoff",
    "connect",
    "finished_operation",
    "fragment_store_health",
    "get_journal",
    "iter_fragments",
    "list_all_fragments",
    "list_all_journals",
    "read_list_response",
]
