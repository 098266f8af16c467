"""HTTP gateway: journals over plain HTTP, a JSON form of two RPCs, and diagnostics.

The library behind it is imported with the module `gateway`, which takes a while.

aiohttp drops a chunked body that turns into garbage without an error for the reader, so that an
append would hold its journal. A client that half-closes a connection still waits for the response:
the gateway closes when no request is in progress.
"""
