"""gRPC servers of brokers and consumers: address, limits, TLS, calls, planned stop, and process.

Imports `aio` and `protocol`.

Pitfalls of the gRPC library, each of which caused a failure once:

* A forgotten server hung the process when it was collected after its loop had closed. So it's never
  destroyed.
* A cancelled call looks like its end to a server: the request iterator ends normally first. A
  commit is decided only after another turn of the loop.
* A cancelled `start()` of a server kills the task that serves calls. It's finished, and then
  stopped.
* Cancellation within `context.write()` hangs the RPC. The end of a token bounds waits, never sends.
* The core of gRPC cancels requests at random while more than a thousand are pending, and those that
  wait for a busy event loop for 30 s. The limits are raised, because servers look at all of them.
* Go's clients don't retry UNAVAILABLE of unary calls, so a stop must not answer it to requests that
  arrived before; a refused connection is fine.
* A client may have a message before its server's `write()` returns. Later responses mustn't depend
  on events in between.
"""
