"""gRPC servers of brokers and consumers: address, limits, TLS, calls, planned stop, and process.

Imports `aio` and `protocol`.
"""
