"""Appends: one RPC, one append which retries, and the service which batches them.

Imports `client.rpc`, the modules of `client` itself, `aio` and `protocol`.
"""
