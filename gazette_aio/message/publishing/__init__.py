"""Publishing: messages, batches and tables, by themselves or in transactions.

Imports `message.adapters`, `message.framing` and `message.mapping`, `client`, `aio` and `protocol`;
tables import `message.columns` as well, on first use.

* Batches are encoded before anything is published, and stamped while the journal's append is held,
  so that clocks rise in the order of bytes. If a part of a batch of uncommitted messages is
  abandoned, no later transaction commits the rest.
* A journal gets one acknowledgement per transaction, so that uncommitted messages belong to a
  `JournalState` rather than to a route: views of a Publisher have routes with encoders of their
  own.
* A journal may be abandoned while a message waits for it, and the message must not keep the old
  producer's encoder: routes are looked up again under the lock.
* Concurrent transactions are one line. A sequential program takes the same path. Declined: a
  producer for each block, which readers would have to remember.
* After a failed transaction, the Publisher takes a fresh producer ID, so that no later
  acknowledgement can commit what it gave up.
* A publisher that never suspends starves the loop that sends its appends. It yields after a number
  of bytes.

Of an `IntentLog` with a fence, the register names the owner *and* the latest decided record. A
commit stores the record in a file of its own, compares and sets the register, and appends the
acknowledgements; the append to the register's journal puts all owners in one order. A former owner
may awake before any of these steps. Its record counts only if the register names it; its
acknowledgements are of a decided transaction, or are never appended. Journals of messages have no
registers: a check there couldn't fence a journal that only the former owner knows, and would cost
messages their place in shared batches. Empty registers match any check; a cluster has them after it
lost a journal's replicas. Then the newest sound record counts, and commits set the register again.
In PostgreSQL, one row is lock, register and record, and the user's statements run in the
transaction that stores the record, after the row is locked.
"""
