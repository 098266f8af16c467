"""Client of Gazette brokers: appending to, reading and listing journals.

Rules that hold in all of it:

* A deadline cancels the call and raises outside the handler of the cancellation, which would keep
  the RPC alive. A background append stays pending when an await of it times out: a batch that
  failed by its deadline would fail all later appends of its journal.
* One task per read stream calls the RPC's `read()` ahead of the caller. Cancelling `read()` would
  end the stream; cancelling the caller leaves the task alone.
* Routing never waits for a member. Until the member's channel is ready, RPCs go to the client's
  address, whose broker proxies them; an unreachable advertised endpoint costs nothing. With an
  `https` address, plaintext members aren't dialled, because tokens would travel unencrypted.
* `RetryReader` requests one fragment at a time, when it needs the first byte, so that signed URLs
  are fresh. Errors and reprs omit the queries of URLs.
* Before a watch resumes, the client lists with a selector that matches nothing: a broker with
  another key space would wait for revisions that never come. A slow consumer skips listings, and
  never misses the last.
* Brokers up to v0.99 ignore prefixes in selectors. The client detects them by listings without
  creation revisions, and filters itself.
* A journal name that begins with `../` is valid on the wire. The client refuses it: another
  broker's file store may follow it out of its root.

Pitfalls of grpcio: it turns an undecodable response into None, which looks like the end of a
stream, so the client decodes responses itself. A write that fails because the peer answered early
replaces the status by `INTERNAL "Internal error from Core"`, so an append keeps the first one.
Keepalive ends after two pings without data, so that an idle watch never notices a half-open
connection: pings continue, every 301 s, since brokers refuse more than one in five minutes.

Differences from Go's client, in cases in which it loses, repeats or hangs: an `end_offset` within a
hole ends the read; a failed append in `AppendService` ends only the appends that were to follow it,
and a transaction that may lack a message because of that fails; waits can be cancelled; streams
that end without progress are throttled, and permanent errors raised; every kind of RPC can forget
routes; refusals because of registers are raised at once. `gazette_append_bytes_total` counts
committed bytes; Go's client also counts failed attempts.

Declined: a read that ends at the write head without an error; gauges of offset and lag; metadata
per client (claims are per request).
"""

from __future__ import annotations

from gazette_aio.client.appends.append import Content
from gazette_aio.client.appends.appender import Appender
from gazette_aio.client.appends.async_journal_client import AsyncJournalClient
from gazette_aio.client.appends.futures import AsyncOperation, OpFuture, finished_operation
from gazette_aio.client.appends.handle import AsyncAppend
from gazette_aio.client.appends.journal_errors import ClearedError
from gazette_aio.client.appends.service import AppendService, StrictAppendService
from gazette_aio.client.auth import Auth, auth_from_environment
from gazette_aio.client.client import JournalClient, connect
from gazette_aio.client.context import ClientOptions
from gazette_aio.client.fragments.fetcher import (
    FragmentBody,
    FragmentFetcher,
    HTTPFragmentFetcher,
)
from gazette_aio.client.fragments.file_transport import install_file_transport
from gazette_aio.client.fragments.reader import FragmentReader
from gazette_aio.client.fragments.source import FragmentSource, open_fragment, open_fragment_url
from gazette_aio.client.listing.calls import (
    apply_journals,
    get_journal,
    iter_journals,
    list_all_journals,
)
from gazette_aio.client.listing.changes import JournalChange, ListChanges
from gazette_aio.client.listing.fragment_calls import (
    iter_fragments,
    list_all_fragments,
)
from gazette_aio.client.listing.snapshots import ListStream, list_snapshots
from gazette_aio.client.listing.watched_list import PolledList, WatchedList
from gazette_aio.client.metrics import Metrics
from gazette_aio.client.options import TLSOptions
from gazette_aio.client.reads.buffered_reader import BufferedRetryReader
from gazette_aio.client.reads.reader import Reader
from gazette_aio.client.reads.retry_reader import RetryReader
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
    "JournalChange",
    "JournalClient",
    "ListChanges",
    "ListStream",
    "MemberStatus",
    "Members",
    "Metrics",
    "NoopDispatchRouter",
    "OpFuture",
    "Operation",
    "PolledList",
    "Reader",
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
    "list_snapshots",
    "members_of",
    "open_fragment",
    "open_fragment_url",
]
