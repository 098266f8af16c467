"""Embedded broker: serves journals from one process and one directory, as a cluster does.

Front ends (gRPC, HTTP) authorize requests and pass them to `broker.service`. What decides is pure:
`append_machine`, `append_rules`, `rolling`, `flow_control`, `cover_index`, `keyspace`, and the
records of both logs. A data directory holds:

    LOCK                          locked while a broker runs
    CLUSTER                       identity of the key space; the term rises with each start
    heads                         how much of each log is acknowledged
    meta/<revision>.log           specs: a snapshot, and changes after it; the log before is kept
    journals/<revision>-<hash>/   a journal, from its creation to its deletion
      <begin>.spool               content of a fragment, with a possible torn tail
      <begin>.log                 BEGIN, a COMMIT for each append, PERSISTED
    fragments/                    root of file:// stores, unless --file-root names another

* A commit is one record. Appends are acknowledged, and shown to readers, by these records alone.
* BEGIN has the end of the previous fragment, so that recovery distinguishes a journal that skipped
  ahead from one that lost a file.
* `fsync="commit"` syncs both files before an append is acknowledged, `interval` soon after, `off`
  never. A killed process loses nothing in any mode. Names of files are synced before their content
  is acknowledged; PERSISTED is durable before a file is removed; recovered content is synced before
  readers see it.
* A failed write rolls the append back and cuts the log, so that appends continue once the disk has
  room. A failed sync closes the journal until a restart: a later sync could succeed without the
  lost data.
* Idle journals cost nothing. They're opened at first use and have no task or timer: one scheduler
  holds a heap of deadlines. The index of fragments is packed into columns, which cost the garbage
  collector nothing.
* A planned stop serves requests in progress to their end, refuses others as UNAVAILABLE, and then
  half-closes the connections.
* Stores don't delay each other. Their calls have threads that aren't joined. A call of a remote
  store may be left at any time; a call of a local store is awaited, since its files mustn't be
  closed under a running thread.
* A change of specs reaches the log and memory in one shielded step: cancelled in between, the next
  one would take the same revision.

Differences from a cluster are intended; docs/broker.md lists them. Where Gazette's behaviour may
matter to tests, an option restores it: `assign_delay`, `nested_journals="shared"`,
`claim_checks="gazette"`.
"""

from __future__ import annotations

from gazette_aio.broker.control.control import BrokerControl as BrokerControl
from gazette_aio.broker.embedded import EmbeddedBroker as EmbeddedBroker
from gazette_aio.broker.host.clock import ManualClock as ManualClock
from gazette_aio.broker.host.options import BrokerOptions as BrokerOptions
from gazette_aio.broker.serve import serve as serve
