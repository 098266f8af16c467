"""A gRPC server of ours: address, limits, TLS, calls, planned stop, and the process around it.

Shared by all servers: brokers, and consumers. Imports `aio` and `protocol`.
"""
