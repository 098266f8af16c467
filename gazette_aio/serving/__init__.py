"""Parts of a gRPC or HTTP server: TLS, Unix sockets, and a planned stop.

Imports `aio` and `protocol`.
"""
