"""Readers of journals: one RPC, reads with retries, and buffered reads.

Imports `client.context` and the rooms and modules below it, `aio` and `protocol`.
"""
