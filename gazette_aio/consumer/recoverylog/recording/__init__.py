"""Recorders: files change locally, and each change is appended to a recovery log in the same order.

Threads record, and the event loop appends what they hand over. Imports `aio`, `client`, `protocol`
and the pure modules of `recoverylog`, nothing of `playing`.

* An operation is applied and encoded under a lock, in any thread; pieces of about 1 MiB are
  appended in order, and the first failure ends it. All operations of a call, or of an `atomic()`
  block, are in one append. If others make a barrier that waits for futures amid the block, all of
  it waits.
* The event loop's thread never waits. Another thread waits for the event loop, before it takes the
  lock, while 8 MiB are queued: so whatever runs in the event loop may not block on such a thread.
* A barrier is an append, if need be of no bytes. Each append checks the author's register, and so
  fails once another process has taken over.
* Files and log agree, or the recorder stops. A call that contradicts the history fails it for good.
  A directory's call is checked before a file changes, and holds its lock from the change to the
  record.
* Logs can't truncate. An emptied file is another fnode, and `RecordedDir` shortens none.
  `SQLiteStore` copies its databases to paths of the suffix `.gazette-copy`, which users' files may
  not have.
"""
