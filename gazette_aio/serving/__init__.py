"""A gRPC server of ours: address, limits, TLS, calls, planned stop, and the process around it.

Holds what servers need whatever they serve: brokers, and consumers. Imports `aio` and `protocol`.
"""
