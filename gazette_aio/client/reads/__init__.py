"""Readers of journals: one RPC, reads which retry, and buffered ones.

Imports `client.rpc`, `client.fragments`, the modules of `client` itself, `aio` and `protocol`.
"""
